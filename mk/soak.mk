# The router under what goes wrong, at length.
.PHONY: soak kill disconnect
# As many descriptors as may be had: a stream takes four, one each of client and engine and two of the router.
MORE_FILES := ulimit -S -n $$(ulimit -H -n) &&

soak: setup ## streams for SECONDS=600 at STREAMS=1000, with clients that leave, workers that are killed, and reloads (JSON=1)
	@$(MORE_FILES) SECONDS=$(or $(SECONDS),600) STREAMS=$(or $(STREAMS),1000) $(if $(JSON),JSON=1) \
	    $(CARGO) test --release --locked --workspace --test processes -- --nocapture soak

kill: setup ## kill -9 of one worker of four under load: what fails, how long it stays, the others' p99 (SECONDS=20)
	@$(MORE_FILES) SECONDS=$(or $(SECONDS),20) STRICT=1 \
	    $(CARGO) test --release --locked --workspace --test processes -- --nocapture kill

disconnect: setup ## how soon an engine knows that a client has left, 200 times in each phase, held to 10 ms
	@STRICT=1 $(CARGO) test --release --locked --workspace --test disconnect -- --nocapture
