# What watches the router: boards, alerts, runbooks.
.PHONY: test-observability
test-observability: setup ## boards, alerts and runbooks against a real Prometheus that watches a real fleet (a minute after the build)
	CARGO="$(CARGO)" scripts/observability test
