.PHONY: help run test check bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' Makefile

run: ## Install, tune a real model on this machine, show the front, open the page (EXIT=1: stop after that)
	@scripts/run

test: ## Run the tests
	@scripts/test

check: ## Lint, format, types, import direction
	@scripts/check

bench: ## Run the quick benchmarks; each ends with one JSON line
	@scripts/bench

clean: ## Remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
