# What admission is for: goodput under overload.
.PHONY: overload
overload: setup ## goodput at loads from half to three times the engines' capacity, with admission and without (JSON lines; 2 minutes)
	$(CARGO) run --release --locked -p tailroute-e2e --example overload
