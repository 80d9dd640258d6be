# The prefix index beside its published peers, interleaved in one run: a table, or JSON lines with JSON=1.
.PHONY: bench-index
bench-index: ## the prefix index beside its published peers (JSON=1 for JSON lines)
	cd tests/bench-index && cargo run --release --locked --quiet
