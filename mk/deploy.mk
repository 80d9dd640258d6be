# How the router is installed: the chart, kustomize, the Dockerfile, the systemd unit.
.PHONY: test-deploy
test-deploy: setup ## chart, kustomize, Dockerfile and systemd unit, against Helm, kubectl, Kubernetes' own schemas, checkov and the router (2 minutes after the build)
	CARGO="$(CARGO)" scripts/deploy test
