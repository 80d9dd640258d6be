# Several routers that hear of each other by NATS.
.PHONY: test-replicas
test-replicas: setup ## several routers before the same engines, with a real nats-server that dies and comes back, and a rolling restart under load (installs nats-server; two minutes after the build)
	CARGO="$(CARGO)" scripts/replicas test
