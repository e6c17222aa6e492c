# Needs make, Python 3.10 or newer and Java 17 or newer; everything else goes into .venv.

PYTHON ?= python3
SEEDS ?= 1000
# The number of tests that run at a time. One computes; each of the others waits half of the time (tests/conftest.py).
PROCESSES ?= 4
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/setup.log
# pytest rewrites the tests' modules. Without its cache that takes seconds in each process.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PROCESSES)
UV := $(BIN)/uv --no-progress
LOCK_OPTIONS := --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet
EXTRAS := --extra jobs --extra fast --extra metrics --extra otel

.DEFAULT_GOAL := help
.PHONY: help setup test-fast test test-long soak lint demo bench simulate lock clean
MAKEFLAGS += --no-print-directory

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.classes ## install everything into .venv (two or three minutes the first time)

test-fast: PROCESSES = 3# a fourth one takes longer to collect the tests than it saves
test-fast: setup ## run the tests that need no broker and no Spark, kill nothing and are quick; two rows of each table
	@$(PYTEST) --hypothesis-profile fast --rows 2 -m "not broker and not spark and not crash and not slow" $(ARGS)

test: setup ## run every test but the long ones and the soak, PROCESSES=4 at a time
	@$(PYTEST) $(ARGS)

test-long: PROCESSES = 3# a fourth pipeline of jobs makes the others late
test-long: setup ## run the long tests: pipelines of several jobs and sites, jobs that are killed
	@ABCAST_LONG=1 $(PYTEST) -m "long and not soak" $(ARGS)

# Each test starts a cluster, which keeps two cores busy.
soak: PROCESSES = $(shell $(BIN)/python -c 'import os; print(max(1, (os.cpu_count() or 1) // 2))')
soak: setup ## run the long tests: thousands of seeds and examples, clusters in which everything is killed
	@ABCAST_SOAK=1 $(PYTEST) -m soak $(ARGS)

lint: setup ## check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# The archive of classes shortens later starts, but costs more time than it saves in the first demo: it comes after that.
demo: $(VENV)/.jars ## show the whole pipeline at work; ARGS="--input FILE --members 5" passes options on
	@$(BIN)/abcast demo $(ARGS)
	@$(MAKE) $(VENV)/.classes

bench: setup ## measure throughput and latency
	@$(BIN)/python -m tests.bench $(ARGS)

simulate: ONE = $(if $(SEED),--seed $(SEED)) $(if $(STORY),--story)
simulate: setup ## run SEEDS=1000 simulated histories of each world; with SEED=7 one, with STORY=1 its story
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --membership --seeds $$(($(SEEDS) / 10)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --sites --seeds $$(($(SEEDS) / 2)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --hub --seeds $$(($(SEEDS) / 10)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --casts --seeds $(SEEDS) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --cuts --seeds $$(($(SEEDS) / 5)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --groups --seeds $$(($(SEEDS) / 5)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --isis --seeds $$(($(SEEDS) / 2)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --isis-sites --seeds $$(($(SEEDS) / 10)) $(ONE) $(ARGS)
	@$(BIN)/python -m tests.simulator --restores --seeds $$(($(SEEDS) / 5)) $(ONE) $(ARGS)

lock: setup ## write conf/*.lock anew from pyproject.toml
	@$(UV) pip compile pyproject.toml $(EXTRAS) --group dev --upgrade $(LOCK_OPTIONS) --output-file conf/requirements-dev.lock
	@$(UV) pip compile pyproject.toml $(EXTRAS) --constraint conf/requirements-dev.lock --upgrade $(LOCK_OPTIONS) \
		--output-file conf/requirements.lock
	@echo "Wrote conf/requirements.lock and conf/requirements-dev.lock."

clean: ## remove .venv and everything tests and builds leave behind
	@rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache artifacts metastore_db spark-warehouse derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Four stamps, so that a change redoes only what depends on it.

$(VENV)/.packages: conf/requirements-dev.lock
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "There is no $(PYTHON): install Python 3.10 or newer, or name\
	 one with make setup PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than Python 3.10:\
	 install a newer one, or name one with make setup PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) can't make virtual environments:\
	 install its venv module (the package python3-venv on Debian and Ubuntu)." >&2; exit 1; }
	@$(PYTHON) -m connectors.local.java
	@echo "Making a Python environment in $(VENV)."
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing the Python packages (about a minute; pyspark is the large one)."
	@# uv takes half of pip's time. It ignores pip's own configuration, so pip tries, too, if uv fails.
	@awk '/^[a-z]/ {keep = /^uv==/} keep' $< >$(VENV)/uv.lock
	@{ $(BIN)/pip install --require-hashes --no-deps -r $(VENV)/uv.lock && \
		{ $(UV) pip install --python $(BIN)/python --compile-bytecode --require-hashes --no-deps -r $< || \
		$(BIN)/pip install --require-hashes --no-deps -r $<; }; } >$(LOG) 2>&1 || { \
		echo "The Python packages could not be installed: check the network (and HTTPS_PROXY), then run make setup\
	 again; the whole output is in $(LOG)." >&2; exit 1; }
	@touch $@

$(VENV)/.project: $(VENV)/.packages pyproject.toml
	@echo "Installing abcast itself."
	@$(BIN)/pip install --no-deps --no-build-isolation --no-index --editable . >$(LOG) 2>&1 || { \
		echo "abcast itself could not be installed: see $(LOG)." >&2; exit 1; }
	@# For environments with PYTHONDONTWRITEBYTECODE, in which every start would compile the modules.
	@$(BIN)/python -m compileall -q ordering connectors jobs conf
	@touch $@

$(VENV)/.jars: $(VENV)/.project conf/ivy.xml $(wildcard conf/scala/*.scala)
	@$(BIN)/python -m connectors.local.jars
	@touch $@

$(VENV)/.classes: $(VENV)/.jars
	@$(BIN)/python -m jobs.class_archive
	@touch $@
	@echo "Ready: try make demo."
