# `make` alone lists the targets.  Needs python3 (3.11 or newer) with venv, make and git; all else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCKED := $(VENV)/.locked
STAMP  := $(VENV)/.ready
CODE   := connector mapping tests tools bench $(wildcard examples)
PYTEST := $(BIN)/python -m pytest $(if $(K),-k "$(K)")

# Where the AMQP conformance kit lies; it is not part of this repository.
CONFORMANCE ?= ../shared/conformance
# Where requeued messages go in its run: tail or original.
REQUEUE ?= tail

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup fmt lint types arch test check contract clients property conformance fault series differential run demo bench soak gen build lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## make .venv from requirements.lock (once; again only when the lock file changes)

$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "needs Python 3.11 or newer with its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(STAMP): $(LOCKED) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

fmt: $(STAMP) ## format the code and apply the safe fixes
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lint: $(STAMP) ## ruff: style, bugs, formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy $(CODE)

arch: $(STAMP) ## the import rules between the layers, and the size limits
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	$(BIN)/python tools/check_sizes.py

test: $(STAMP) ## all tests that need nothing but .venv (K=word narrows)
	$(PYTEST) tests

check: lint types arch test ## exactly what CI runs first: lint, types, arch, test

contract: $(STAMP) ## the store suite: in-process, embedded, and KUBEMQ_ADDRESS where set
	$(PYTEST) tests/contract

clients: $(STAMP) ## real AMQP clients against a running server (CLIENT=pika narrows)
	$(BIN)/python -m pytest $(if $(CLIENT),-k "$(CLIENT)",$(if $(K),-k "$(K)")) tests/clients

property: $(STAMP) ## properties and models, by Hypothesis
	$(PYTEST) tests/property

conformance: $(STAMP) ## the AMQP conformance kit at CONFORMANCE=dir against a fresh server (K="C10 C27" narrows; REQUEUE=original)
	AMQP_REQUEUE=$(REQUEUE) $(BIN)/python tools/conformance.py $(CONFORMANCE) $(K) --serve=--requeue --serve=$(REQUEUE)

fault: $(STAMP) ## faults under load: SEEDS=100 seeds, or one again by ARGS="--seed 17" (docs/faults.md)
	$(BIN)/python -m tools.fault --seeds $(or $(SEEDS),20) $(ARGS)

series: $(STAMP) ## one fault again and again: KIND=connector-kill, backend-term, backend-kill or backend-stop (docs/faults.md)
	$(BIN)/python -m tools.fault.series $(or $(KIND),connector-kill) $(ARGS)

differential: $(STAMP) ## random sequences played to us and to RABBITMQ_URL (ARGS="--url amqp://... --seed 1 --count 100 --workers 4")
	$(BIN)/python -m tools.differential $(if $(RABBITMQ_URL),--reference $(RABBITMQ_URL)) $(ARGS)

run: $(STAMP) ## set up if need be, then serve (ARGS="--port 5673" passes flags)
	$(BIN)/kubemq-amqp serve $(ARGS)

demo: $(STAMP) ## the work-queue example, a worker killed in the middle (ARGS="--kubemq-address HOST:PORT" for a real KubeMQ)
	$(BIN)/python tools/demo.py $(ARGS)

bench: $(STAMP) ## PerfTest against us and, with KUBEMQ_ADDRESS, RABBITMQ_URL, those (ARGS="--workloads latency --rounds 1"; --help tells)
	$(BIN)/python -m bench $(ARGS)

soak: $(STAMP) ## does anything grow, do the marks bound memory (MINUTES=15, ARGS="--targets kubemq")
	$(BIN)/python -m bench.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

gen: $(STAMP) ## write what is generated: the table of docs/configuration.md
	$(BIN)/python tools/write_configuration.py

build: $(STAMP) ## wheel and source archive in dist/
	$(BIN)/python -m build --no-isolation

lock: ## resolve the dependencies anew into requirements.lock
	@test -x .cache/lock/bin/uv || { $(PYTHON) -m venv .cache/lock && .cache/lock/bin/python -m pip install --quiet 'uv>=0.5,<1'; }
	@echo "# Every dependency, development included, with its exact version. Written by \`make lock\`; do not edit." > .cache/requirements.lock
	.cache/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --group dev --generate-hashes \
		--no-header --no-emit-index-url --upgrade pyproject.toml >> .cache/requirements.lock
	@mv .cache/requirements.lock requirements.lock

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
