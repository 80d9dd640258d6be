# What strangers send, fuzzed: bodies, answers, cache events, snapshots, and the index under any evidence.
.PHONY: fuzz
fuzz: setup ## fuzz each target for SECONDS_EACH=60, two at a time (8 minutes with the build)
	scripts/fuzz
