# Two commands for a new user: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch_npu registers itself with torch; without CANN that would break every `import torch`.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0

.PHONY: demo test test-slow lint env clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ascend,serve,report,dev]'
	touch $@

demo: env
	$(BIN)/python -m examples.demo

test: env
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-slow: env
	$(BIN)/python -m pytest -m "not gpu"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist
