# The prefix index beside its published peers, and its protocol under model checkers. Each is built on its own.
.PHONY: bench-index model-index
bench-index: ## the prefix index beside its published peers, and whether it keeps its promises (JSON=1 for JSON lines)
	@cd tests/bench-index && $(CARGO) run --release --locked

model-index: ## the index's own sources under two model checkers (about a minute after the build)
	cd tests/index-model && $(CARGO) test --release --locked
	cd tests/index-model/loom && $(CARGO) test --release --locked
