# Every verb does its own set-up and may be run again at once. Nothing here needs root.
.DEFAULT_GOAL := help
.PHONY: help setup model up test check format docs test-compose clean

PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo $$python; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
ARGS ?=

export OMP_WAIT_POLICY ?= passive
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMPS)/install ## the virtual environment with everything installed

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "orca needs Python 3.11, 3.12 or 3.13; install one, or: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/install: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "installing the packages; the first time this takes a few minutes"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[local,dev]'
	@touch $@

model: setup ## fetch and convert the demo model, once
	@$(BIN)/python -m services.engine.model --model demo >/dev/null

up: model ## the whole stack on http://127.0.0.1:8000; options in ARGS="--engines 2"
	@$(BIN)/orca up $(ARGS)

test: model ## the whole test suite; pytest's options in ARGS="-k selection"
	$(BIN)/python -m pytest $(ARGS)

check: setup ## format, lint, types, import contracts, size budgets
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/size_budget.py
	$(BIN)/python scripts/protocol_doc.py --check
	$(BIN)/python scripts/readme_tree.py --check

format: setup ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## write docs/protocol.md and the tree of the README anew
	$(BIN)/python scripts/protocol_doc.py
	$(BIN)/python scripts/readme_tree.py

test-compose: setup ## the containers, on a real Docker engine
	@bash deploy/ci-docker.sh

clean: ## remove what was built; the demo model stays in the user's cache
	rm -rf $(VENV) $(STAMPS) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
