# One crate, as often as it is edited. tests/features gives the dependencies the features that `make test` builds them with.
.PHONY: check
check: setup ## clippy and the tests of one crate: CRATE=tailroute-proxy (about two minutes once built)
	@crates=$$($(CARGO) tree --locked --workspace --depth 0 --prefix none | awk '$$1 != "tailroute-features" && NF { print $$1 }') \
	    && test -n "$$crates" || exit 1; \
	if ! printf '%s\n' $$crates | grep --quiet --line-regexp --fixed-strings -e '$(or $(CRATE),-)'; then \
	    echo "$(if $(CRATE),the workspace has no crate '$(CRATE)',CRATE is missing): use \`make check CRATE=NAME\` with one of" >&2; \
	    printf '  %s\n' $$crates >&2; exit 2; fi
	$(CARGO) clippy --locked --package $(CRATE) --package tailroute-features --all-targets -- -D warnings
	$(CARGO) test --locked --package $(CRATE) --package tailroute-features
