# Real engines. What is needed is built once, outside the repository: 7 GB, see docs/engines.md.
.PHONY: test-engines engines-clean
test-engines: setup ## real vLLM and SGLang servers with the plugins and the router in front (7 GB and 15 minutes the first time)
	CARGO="$(CARGO)" scripts/engines test

engines-clean: ## remove the environment that test-engines has built
	scripts/engines clean
