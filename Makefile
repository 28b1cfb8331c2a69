# make demo    set up, then hold a real spoken conversation; results in out/demo/
# make test    set up, then every test, on every core up to four (ARGS="-k name" is passed to pytest; JOBS=1 for one core)
# make test-backends  the heavy stage backends (Ray, vLLM) in an environment of their own, 3 GB in the user's cache
# make check   format, lint, types, layers, sizes
# make setup   the environment and the model files, nothing else
# make format  rewrite the sources in the one format
# make lock    pin and hash the dependencies of pyproject.toml anew (ARGS=--upgrade for newer versions)
# make clean   remove the environment, caches and results (model files are kept)
#
# Needs Python 3.11 to 3.13 and make. After the first run nothing needs a network.

VENV ?= .venv
ARGS ?=
JOBS ?= auto
BIN := $(VENV)/bin
SOURCES := src tests scripts
# One inference thread per model: more are slower on a busy machine.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export VENV

.PHONY: demo test test-backends check setup format lock clean run-environment dev-environment

demo: setup
	$(BIN)/duologue demo $(ARGS)

setup: run-environment
	$(BIN)/python -m duologue.setup

test: dev-environment
	$(BIN)/python -m duologue.setup
	$(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 4 --dist worksteal $(ARGS)

test-backends: dev-environment
	$(BIN)/python -m duologue.setup
	scripts/backends.sh $(ARGS)

check: dev-environment
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/ruff check --quiet $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.arch.sizes

format: dev-environment
	$(BIN)/ruff check --fix --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

lock:
	scripts/lock.sh $(ARGS)

clean:
	rm -rf $(VENV) .venv-backends out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

run-environment:
	@scripts/environment.sh run

dev-environment:
	@scripts/environment.sh dev
