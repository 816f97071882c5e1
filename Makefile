# Two commands for a new user: `make demo` and `make test`.
#   make demo        migrate the example in examples/gpt, step by step, with a report
#   make test        the tests; says which ones a missing compiler or browser left out
#   make test-slow   all of them, also the full sweeps
#   make lint        ruff and mypy
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# The extras that tests run on a CPU. A machine without a torch-npu wheel goes without rehearsals.
EXTRAS := serve,train,kernels,cluster,report,dev
# torch_npu registers itself with torch; without CANN that would break every `import torch`.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0

.PHONY: demo test test-slow lint env clean

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

test: env
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not gpu"

test-slow: env
	$(BIN)/python -m pytest -n $(JOBS) -m "not gpu"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist demo-out
