# How the router is installed: the chart, kustomize, the Dockerfile, the systemd unit.
.PHONY: test-deploy
test-deploy: setup ## chart, kustomize, Dockerfile and systemd unit, against Helm, kubectl, Kubernetes' own schemas, checkov, the router and Envoy (3 minutes after the build)
	CARGO="$(CARGO)" scripts/deploy test
