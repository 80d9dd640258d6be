# Discovery of workers by a real name server.
.PHONY: test-discovery
test-discovery: setup ## discovery of workers, with a real name server beside the ones of the tests (installs dnsmasq)
	CARGO="$(CARGO)" scripts/discovery test
