# Several routers that hear of each other by NATS.
.PHONY: test-replicas
test-replicas: setup ## several routers before the same engines, with a real nats-server that dies and comes back (installs nats-server; a minute after the build)
	CARGO="$(CARGO)" scripts/replicas test
