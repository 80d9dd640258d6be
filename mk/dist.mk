# What users install: wheel, tarball, Debian package, chart.
.PHONY: dist test-dist dist-clean
dist: setup ## wheel, tarball, Debian package, chart and SBOM in target/dist-out, from one build (BIN_DIR=folder: of the binaries there)
	CARGO="$(CARGO)" scripts/dist all

test-dist: ## install what `make dist` has made, and send a request through a router of the wheel (half a minute)
	CARGO="$(CARGO)" scripts/dist test

dist-clean: ## remove the environment that dist and test-dist have built
	scripts/dist clean
