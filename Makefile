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
# Installing compiles the library; it is compiled again when its sources change.
LIBRARY := python/smartmem_tvm/lib/opencl.so
NATIVE := $(wildcard native/*.cc native/*.h native/*/*/*/*.h native/*.py)

BENCH := TVM_BIND_THREADS=0 $(BIN)/python -m smartmem_tvm bench

# What is installed is needed for the next step.
.NOTPARALLEL:
.PHONY: demo test test-fast lint clean bench bench-large bench-ablation bench-opencl

# The demo needs no OpenCL: without a compiler there is no library.
demo: $(VENV)/installed $(wildcard $(LIBRARY))
	$(BIN)/python -m smartmem_tvm stats models/swin_t.onnx --run

test: $(VENV)/installed-dev $(LIBRARY)
	$(PYTEST)

test-fast: $(VENV)/installed-dev $(LIBRARY)
	$(PYTEST) -m "not slow"

# The tables of README.md and benchmarks/: sixteen networks in a quarter of an hour, on an idle machine; the two large
# ones take up to 20 GB of memory; the picture of what each technique brings. An interrupted one goes on when called again.
bench: $(VENV)/installed-dev
	$(BENCH) --suite smartmem18 -o benchmarks/smartmem18.json
	$(BIN)/python benchmarks/render.py

bench-large: $(VENV)/installed-dev
	$(BENCH) --suite smartmem18 --large -o benchmarks/smartmem18.json
	$(BIN)/python benchmarks/render.py

bench-ablation: $(VENV)/installed-dev
	$(BENCH) --suite figure8 --ablation --against none -o benchmarks/figure8.json --plot benchmarks/figure8.png
	$(BIN)/python benchmarks/render.py

# OPENCL_RESULTS names the device's file; pyopencl is only for the comparison of launches.
OPENCL_RESULTS ?= benchmarks/opencl_pocl.json
bench-opencl: $(VENV)/installed-dev $(LIBRARY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pyopencl
	$(BIN)/python benchmarks/opencl.py --into $(OPENCL_RESULTS)
	$(BIN)/python benchmarks/opencl.py --overhead --into $(OPENCL_RESULTS)
	$(BIN)/python benchmarks/opencl_start.py --into $(OPENCL_RESULTS)
	$(BIN)/python benchmarks/render_opencl.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist $(dir $(LIBRARY)) python/*.egg-info .pytest_cache .ruff_cache .hypothesis

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

$(LIBRARY): $(NATIVE) | $(BIN)/python
	$(BIN)/python native/build.py
