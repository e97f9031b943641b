# SPDX-License-Identifier: Apache-2.0
# Two commands matter: `make demo` and `make test`. Both work on a fresh clone with Python 3.10 or newer, a C++
# compiler and a way to PyPI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Each test worker runs its own TVM and ONNX Runtime: two threads each are enough, more would only fight.
TEST_ENV := TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 OMP_NUM_THREADS=2
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
PACKAGING := setup.py pyproject.toml python/smartmem_tvm/_version.py

.PHONY: demo test test-fast lint clean

demo: $(VENV)/installed
	$(BIN)/python -m smartmem_tvm stats models/swin_t.onnx --run

test: $(VENV)/installed-dev
	$(PYTEST)

test-fast: $(VENV)/installed-dev
	$(PYTEST) -m "not slow"

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist python/*.egg-info .pytest_cache .ruff_cache .hypothesis

# The stamps say what is installed, so that an interrupted installation is done again.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/installed: $(PACKAGING) | $(BIN)/python
	@echo "Installing into $(VENV): about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/installed-dev: $(PACKAGING) | $(BIN)/python
	@echo "Installing into $(VENV), with the test tools: about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(VENV)/installed
