# What the dependencies are allowed to be.
.PHONY: audit
audit: setup ## licences, sources, banned crates and (with cargo-deny) known advisories of the dependencies
	@scripts/audit
