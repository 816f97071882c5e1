# Two commands for a new user: `make demo` and `make test`.
#   make demo        take two example programs the whole way on a simulated chip, with a report
#   make quick       the tests of the edit loop: no programs, no browsers, nothing of a second or more
#   make test        the tests; says which ones a missing compiler or browser left out
#   make test-slow   all of them, also the full sweeps
#   make lint        ruff and mypy; the share of texts that other languages have
#   make clean-machine  the wheel in empty environments, with each extra alone; ARGS="--extra serve"
#   make docs        the documentation as a site, in build/site
#   make coverage    which lines the tests run; TESTS=tests/ledger for a part
#   make mutants     which changed lines the tests notice; ARGS="--share 0.1" for a part
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# The extras that tests run on a CPU. A machine without a torch-npu wheel goes without rehearsals.
EXTRAS := torch,serve,train,rec,kernels,cluster,agent,otel,tf,dev
# torch_npu registers itself with torch; without CANN that would break every `import torch`.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
# Tests start hundreds of Pythons: each would compile all it imports anew.
unexport PYTHONDONTWRITEBYTECODE
# Each worker takes whole files, which it imports in their turn; tests/conftest.py puts the dear ones
# first. Nobody knows the number of tests before the end: no percentages.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
  -o console_output_style=classic

TESTS ?= tests

.PHONY: demo quick test test-failed test-slow lint clean-machine docs coverage mutants env clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "joymigrate needs Python 3.10 or later: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "this Python has no venv: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[ascend,$(EXTRAS)]' || \
	  { echo "no torch-npu for this machine: going on without it"; $(PIP) -e '.[$(EXTRAS)]'; }
	@touch $@

demo: env
	@$(BIN)/python -m examples.demo

quick: env
	$(PYTEST) --quick -m "not slow and not gpu" $(TESTS)

test: env
	$(PYTEST) -m "not slow and not gpu"

# The tests that failed last, one by one. None: exit code 5.
test-failed: env
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "not slow and not gpu"

test-slow: env
	$(PYTEST) -m "not gpu"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.translations

coverage: env
	$(BIN)/coverage run -m pytest -m "not slow and not gpu" $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutants: env
	$(BIN)/python -m scripts.mutants --jobs $(JOBS) $(ARGS)

clean-machine:
	$(PYTHON) -m scripts.clean_machine $(ARGS)

docs: env
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist demo-out mutants .coverage .coverage.*
