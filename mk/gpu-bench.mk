# The real transformer that gpu-bench measures and serves. What is needed is built once, outside the repository: 6.5 GB.
.PHONY: test-gpu-bench gpu-bench-env gpu-bench-clean
gpu-bench-env: ## the environment of `gpu-bench gpu` and `gpu-bench serve` (torch: 6.5 GB and some minutes, once)
	scripts/gpu-bench env

test-gpu-bench: setup ## the transformer of gpu-bench, and `gpu-bench gpu` and `serve` end to end with a router (3 minutes after the build)
	CARGO="$(CARGO)" scripts/gpu-bench test

gpu-bench-clean: ## remove the environment that gpu-bench-env has built
	scripts/gpu-bench clean
