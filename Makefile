# Needs python3 (3.11 or newer, with venv) and make; everything else is installed into .venv from hash-pinned locks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo demo-local test clients chaos chaos-refunds chaos-tasks simulate check bench lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("siafu needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing siafu into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/build.txt -r requirements/runtime.txt
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@echo "installing the test tools into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/dev.txt
	@touch $@

install: $(VENV)/.runtime  ## siafu into .venv, from hash-pinned locks
	@echo "siafu is at $(BIN)/siafu: $(BIN)/siafu --help"

demo: $(VENV)/.runtime  ## 100 shop requests, 429s and a kill -9: the usual glue beside siafu (no key needed)
	@$(BIN)/siafu demo $(ARGS)

demo-local: $(VENV)/.runtime  ## the support swarm on a real local model: make demo-local ARGS="--base-url http://127.0.0.1:11434/v1 --model NAME"
	@$(BIN)/siafu demo --local $(ARGS)

test: $(VENV)/.dev  ## the whole test suite
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal $(ARGS)

chaos: chaos-refunds chaos-tasks  ## both storms, for a night: make chaos CYCLES=1000

KILLS ?= 1000
STOPS ?= 50
chaos-refunds: $(VENV)/.dev  ## refunds under kill -9 and SIGSTOP, on both databases: make chaos-refunds KILLS=1000 STOPS=50
	@PYTHONPATH=src:tests $(BIN)/python -m money.chaos --kills $(KILLS) --stops $(STOPS) $(ARGS)

CYCLES ?= 100
chaos-tasks: $(VENV)/.dev  ## tasks under kill -9 and SIGSTOP of workers, on both databases, and faults of Redis: make chaos-tasks CYCLES=1000
	@PYTHONPATH=src:tests $(BIN)/python -m tasks.chaos --cycles $(CYCLES) $(ARGS)

SEEDS ?= 10000
simulate: $(VENV)/.dev  ## tasks in virtual time, whatever goes wrong: make simulate SEEDS=100000, or SEED=17 to see what happens
	@PYTHONPATH=src:tests $(BIN)/python -m dst $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

clients: $(VENV)/.dev  ## clients of others: MCP ones at the shop, OpenAI's SDK at siafu serve (fetched once; npm's need node)
	@$(BIN)/python -m pytest -q -m clients tests/clients $(ARGS)

check: $(VENV)/.dev  ## lint, types, layering (sizes and doors are tests)
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.runtime  ## model calls beside other clients, siafu serve beside a bare pass-through, 10,000 that wait: docs/benchmarks.md
	@mkdir -p out
	@$(BIN)/siafu bench gateway --html out/bench-gateway.html $(ARGS)
	@$(BIN)/siafu bench serve --html out/bench-serve.html
	@$(BIN)/siafu bench crowd

lock: $(VENV)/.dev  ## make the locks anew
	@$(BIN)/python -m pip install -q uv
	@for s in "runtime:pyproject.toml" "image:pyproject.toml --extra postgres --extra redis --extra uvloop --extra otel" \
	    "dev:pyproject.toml --group dev" "build:--group pyproject.toml:build" \
	    "clients:--group pyproject.toml:clients"; do \
	  $(BIN)/uv pip compile $${s#*:} --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header --no-annotate -q -o requirements/$${s%%:*}.txt; done

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) .clients .clients-openai tests/clients/node/node_modules out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
