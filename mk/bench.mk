# What the router costs as a proxy, beside other proxies and routers.
.PHONY: bench telemetry-cost bench-clean
bench: setup ## the router beside nginx, haproxy, Envoy and other routers (20 minutes; QUICK=1: 5; JSON=1 for JSON lines; BASE=commit: beside that commit's build instead)
	$(if $(BASE),,@scripts/peers env)
	$(CARGO) build --locked --profile dist -p tailroute -p sim-engine -p bench-proxy --bins
	@target/dist/bench-proxy --bin target/dist \
	    $(if $(BASE),--against "$$(scripts/base $(BASE))",--peers "$$(scripts/peers path)") \
	    $(if $(QUICK),--quick) $(if $(JSON),--json) $(BENCH)

telemetry-cost: setup ## processor time per request and token with all telemetry on against off (5 minutes; JSON=1 for JSON lines; ROUNDS=12)
	$(CARGO) build --locked --profile dist -p tailroute -p sim-engine -p bench-proxy --bins
	@target/dist/bench-proxy --telemetry --bin target/dist --rounds $(or $(ROUNDS),12) $(if $(JSON),--json) $(BENCH)

bench-clean: ## remove the environment that bench has built
	scripts/peers clean
