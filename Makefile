# What a newcomer runs: `make demo` and `make test`. Everything else is for people who work on tailroute.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long lint generate build compare routing-tables clean

help: ## list what can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## check that the machine has what a build needs, and install what Debian can give
	@scripts/setup

# A development build, which `make test` goes on with: `--workspace` gives the crates the features that they have there. It optimises
# the path of a request, so the demo shows what a release build shows.
demo: setup ## compare routing policies on four simulated engines (half a minute after the build)
	CARGO="$(CARGO)" scripts/build --locked --workspace --bin tailroute
	$(or $(CARGO_TARGET_DIR),target)/debug/tailroute demo

build: setup ## the release binaries: tailroute, sim-engine, gpu-bench
	CARGO="$(CARGO)" scripts/build --release --locked --workspace --bins

test: setup ## all tests that need nothing but this machine; CRATE=tailroute-proxy: those of one crate
	$(CARGO) test --locked $(if $(CRATE),--package $(CRATE) --package tailroute-features,--workspace)

test-long: setup ## what `make test` leaves out: ten million random operations on the index, a Bailian trace of full size (minutes)
	$(CARGO) test --release --locked -p tailroute-policy --lib index::tests::twin:: -- --ignored
	cd research && $(RESEARCH) test --release --locked --test sim_cache -- --ignored

# Crates that are built on their own: what they take from here must not leave their lock files behind.
APART := research tests/bench-index tests/fuzz tests/index-model tests/index-model/loom

lint: setup ## formatting, clippy with warnings as errors, names of the router's types, modules that use each other in a circle, and the lock files of crates outside the workspace
	@scripts/names
	@scripts/cycles
	@for crate in $(APART); do \
	    $(CARGO) update --quiet --workspace --locked --manifest-path $$crate/Cargo.toml || exit 1; done
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

generate: setup ## write what is generated: configuration reference and example, the chart's schema, metrics reference, the console's tables, tables of the migration guide
	TAILROUTE_BLESS=1 $(CARGO) test --locked --quiet -p tailroute-config --lib generated
	TAILROUTE_BLESS=1 $(CARGO) test --locked --quiet -p tailroute-metrics -p tailroute-admin -p tailroute-migrate --lib generated

compare: build research-build ## drive four policies over HTTP at two loads, interleaved; TRACE=file, URL, mooncake or a generator (14 minutes; LOADS, ROUNDS, JSON=1)
	@scripts/compare $(TRACE)

routing-tables: research-build ## TRACE=file: the tables of docs/routing.md, and docs/routing.svg (minutes)
	@target/release/tailroute-lab tables --routing --trace $(TRACE) --svg docs/routing.svg

clean: ## remove what was built
	$(CARGO) clean

-include mk/*.mk
