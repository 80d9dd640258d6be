# The admin port against its OpenAPI document.
.PHONY: test-admin admin-clean
test-admin: setup ## schemathesis against a running router: no 5xx, nothing that the document does not describe (two minutes)
	$(CARGO) build --locked -p tailroute -p sim-engine --bins
	scripts/admin test

admin-clean: ## remove the environment that test-admin has built
	scripts/admin clean
