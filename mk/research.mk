# The laboratory, which the product does without. It is a workspace of its own; what both compile is compiled once, in the
# same target folder.
.PHONY: research research-build
RESEARCH := CARGO_TARGET_DIR="$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)" $(CARGO)
research: setup ## the laboratory, built, linted and tested: cache policies for comparison, experiments, tables (minutes)
	cd research && $(RESEARCH) fmt --check
	cd research && $(RESEARCH) clippy --locked --all-targets -- -D warnings
	cd research && $(RESEARCH) test --locked

research-build: setup ## target/release/tailroute-lab
	cd research && $(RESEARCH) build --release --locked --bins
