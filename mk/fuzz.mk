# What strangers send, fuzzed: bodies, answers, cache events, snapshots, and the index under any evidence.
.PHONY: fuzz
fuzz: setup ## fuzz each target (SECONDS_EACH=60); installs cargo-fuzz if it is missing
	scripts/fuzz
