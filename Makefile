# Each target sets up what it needs; a fresh machine has only Python, Java 17 and the package registries.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=
# What the environment may forbid: kept bytecode, with the asserts as pytest writes them, halves the time to collect tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run demo test check unit lint types imports chaos explore compat bench lock docs wheel clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with the package, every extra and the development tools

$(STAMP): requirements.lock pyproject.toml
	@echo "setup 1/4: making .venv with $$($(PYTHON) --version); all of it takes about a minute the first time" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setup 2/4: installing uv" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.lock)"
	@echo "setup 3/4: installing $$(grep -c '==' requirements.lock) packages, PySpark among them (400 MB)" >&2
	@$(BIN)/uv pip sync --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	@echo "setup 4/4: installing headrace itself" >&2
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@$(BIN)/python -m compileall -q src
	@echo "setup done: .venv/bin/headrace" >&2
	@touch $@

run: setup  ## one broker with its gateway on an embedded store, in the foreground
	@$(BIN)/headrace up $(ARGS)

demo: setup  ## orders and payments through a pipeline on Spark, live, then what came out of it
	@$(BIN)/python -m examples.orders.demo $(ARGS)

test: setup  ## lint, types, imports, and every test but the long ones
	@$(MAKE) --no-print-directory lint types imports
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

check: setup  ## what to run before each commit: lint, types, imports and unit tests, beside each other
	@$(MAKE) --no-print-directory --output-sync=target -j 4 lint types imports unit

unit: setup
	HYPOTHESIS_PROFILE=few $(BIN)/pytest -q -n 2 -m "not slow and not long" tests/unit $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

imports: setup
	@$(BIN)/lint-imports

chaos: setup  ## what takes long, in parts: wild simulations, clusters killed and cut, Spark; ARGS="--part wild", ARGS=--list
	$(BIN)/python -m tests.chaos $(ARGS)

explore: setup  ## the property tests on examples nobody has tried yet
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest -q -n 2 tests/property $(ARGS)

compat: setup  ## other people's clients against a running broker; writes docs/compatibility.md
	$(BIN)/python -m tests.compat $(ARGS)

bench: setup  ## throughput, latency, start and memory, each beside its ceiling
	$(BIN)/python -m bench $(ARGS)

docs: setup  ## renew docs/configuration.md, metrics.md, states.md and cli.md from the tables and commands in the code
	@$(BIN)/python -m headrace.config > docs/configuration.md
	@$(BIN)/python -m headrace.metrics > docs/metrics.md
	@$(BIN)/python -m headrace.coordinator > docs/states.md
	@$(BIN)/python -m headrace.cli.reference > docs/cli.md

wheel: setup  ## dist/: the wheels of headrace and headrace-zookeeper (whose jars Maven fetches)
	@rm -rf build packaging/zookeeper/build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . packaging/zookeeper

lock: setup  ## renew requirements.lock
	$(BIN)/uv pip compile pyproject.toml --python $(BIN)/python --extra arrow --extra spark --extra sql --extra lake --extra postgres --group dev --universal --generate-hashes \
	  --no-header --no-annotate --quiet --upgrade --output-file requirements.lock

clean:  ## remove what the other targets made
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist
