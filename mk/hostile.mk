# Strangers of every kind at once, against the release binary.
.PHONY: test-hostile smuggling-clean
# As many descriptors as may be had: a stranger's connection takes two, its own and the router's.
test-hostile: setup ## hostile clients, workers and publishers beside STREAMS=200 honest ones, for SECONDS=3 each; and what workers parse of every form of request (5 minutes after the build; STRICT=1 holds /livez to 50 ms)
	@$(CARGO) build --release --locked --workspace --bins --test hostile
	@ulimit -S -n $$(ulimit -H -n) && SECONDS=$(or $(SECONDS),3) STREAMS=$(or $(STREAMS),200) $(if $(STRICT),STRICT=1) \
	    TAILROUTE_BIN=$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release/tailroute \
	    $(CARGO) test --release --locked --workspace --test hostile -- --nocapture --test-threads=1
	@TAILROUTE_BIN=$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release/tailroute scripts/smuggling test

smuggling-clean: ## remove the environment that test-hostile has built
	scripts/smuggling clean
