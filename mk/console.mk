# The console, in a browser.
.PHONY: test-console
test-console: setup ## the console in headless Chromium, clicked through in front of a real router (installs Chromium and Node.js; 3 minutes)
	CARGO="$(CARGO)" scripts/console test
