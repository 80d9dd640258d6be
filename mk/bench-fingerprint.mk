# What reading a request costs, on bodies as clients write them.
.PHONY: bench-fingerprint
bench-fingerprint: setup ## parse and fingerprint of 128 KB and 1 MB bodies, and whether they keep their promises (JSON=1 for JSON lines)
	$(CARGO) bench --locked --quiet -p tailroute-protocol --bench fingerprint_gate
