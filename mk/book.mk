# The documentation: as a book, and as commands.
.PHONY: book test-docs
book: ## docs/ as a book in target/book, with every link checked (mdBook from PyPI; seconds)
	scripts/book build

test-docs: setup ## run or check each command, configuration and path of README.md and docs/, and check their words (a minute after the build)
	CARGO="$(CARGO)" scripts/book test
