# SPDX-License-Identifier: Apache-2.0
"""Setup of every test: `helpers` importable wherever pytest is started, repeatable property tests, empty caches."""

import gc
import hashlib
import importlib.metadata
import os
import platform
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from covering import left_out

# The same examples in every run, and no time limit for one of them: a busy machine must not fail the suite.
# `make test-all` takes 100 examples of each property (`pytest --full-grids`), the other tiers the first 40.
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=40)
settings.register_profile("full", settings.get_profile("suite"), max_examples=100)
settings.load_profile("suite")


def _driver_key() -> str:
    """Name the PoCL drivers of this machine, so that an updated driver does not find the older one's kernels."""
    libraries = [Path(icd.read_text().strip()) for icd in sorted(Path("/etc/OpenCL/vendors").glob("*.icd"))]
    facts: list = [(str(path), path.stat().st_mtime_ns) for path in libraries if path.is_file()]
    facts += [each.version for each in importlib.metadata.distributions(name="pocl-binary-distribution")]
    return hashlib.sha256(repr((platform.processor(), facts)).encode()).hexdigest()[:12]


# The drivers' cache of kernels stays from one run to the next, which halves the time of these tests. The caches of this
# package are outside of the user's home, and a test never finds entries of an older version of this package. All are
# set before any import that reads them; the workers of a run inherit the folders of their parent process.
_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_pocl = Path(os.environ.setdefault("POCL_CACHE_DIR", str(_home / "smartmem_tvm_tests" / f"pocl-{_driver_key()}")))
_pocl.mkdir(parents=True, exist_ok=True)
_caches = None
# Without a cache of OpenCL programs, each kernel is compiled in the process that launches it. To put one there, PoCL
# compiles it twice, in a process that is started for it: twice the processor time for a module of five kernels. Tests
# of that cache and of those processes name a folder of their own.
os.environ.setdefault("SMARTMEM_OPENCL_CACHE", "0")
for _variable in ("SMARTMEM_SPEED_CACHE", "SMARTMEM_ISA_CACHE", "SMARTMEM_TORCH_CACHE"):
    if _variable not in os.environ:
        _caches = _caches or tempfile.TemporaryDirectory(prefix="smartmem-caches-", ignore_cleanup_errors=True)
        os.environ[_variable] = str(Path(_caches.name) / _variable.lower())


@pytest.fixture(autouse=True)
def same_threads():
    """Restore the number of threads, which a command sets in this process, and which servers would inherit."""
    before = os.environ.get("TVM_NUM_THREADS")
    yield
    os.environ.pop("TVM_NUM_THREADS", None)
    if before is not None:
        os.environ["TVM_NUM_THREADS"] = before


# These tests say what kernels compute. TVM begins each kernel with a check of each argument, for which LLVM takes
# longer than for the loops of a small kernel. tests/deploy, tests/cli and tests/test_*.py keep the checks.
_UNCHECKED = {"frontend", "schedule", "transform"}


@pytest.fixture(autouse=True)
def unchecked_arguments(request):
    """Compile kernels without TVM's checks of their arguments, in the folders of `_UNCHECKED`."""
    if _folder(request) not in _UNCHECKED:
        yield
        return
    import tvm

    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        yield


# What kernels compute is tested there, not how fast PoCL's code is: its optimizer takes up to three quarters of the
# time of a test whose loops are unrolled. Slow tests keep it, as whole networks run for longer than they are compiled,
# and so do the other folders and the processes of `fake_driver.run_with_pocl`.
_UNOPTIMIZED = {"deploy", "frontend", "schedule", "transform"}
_OPTIONS = "SMARTMEM_OPENCL_OPTIONS"


@pytest.fixture(autouse=True)
def unoptimized_opencl(request):
    """Let OpenCL drivers optimize no kernel, in the folders of `_UNOPTIMIZED`."""
    chosen = _OPTIONS in os.environ or request.node.get_closest_marker("slow")
    if chosen or _folder(request) not in _UNOPTIMIZED:
        yield
        return
    os.environ[_OPTIONS] = "-cl-opt-disable"
    yield
    os.environ.pop(_OPTIONS, None)


def _folder(request) -> str:
    return request.path.relative_to(Path(__file__).parent).parts[0]


def pytest_addoption(parser):
    """Add the option that rewrites golden files, to be reviewed in the diff."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files below tests/golden anew")
    parser.addoption(
        "--full-grids", action="store_true", help="run what @pytest.mark.pairwise and each_value leave out"
    )
    parser.addoption("--processor-time", metavar="FILE", help="write the processor seconds of each test as JSON")


def pytest_configure(config):
    """Measure where that is asked for, and take more examples."""
    if config.getoption("--full-grids"):
        settings.load_profile("full")
    if config.getoption("--processor-time"):
        from processor_time import ProcessorTime

        config.pluginmanager.register(ProcessorTime(config), "processor-time")


def pytest_sessionstart():
    """Look for no garbage while tests are collected: modules, tests and their parameters all stay."""
    gc.disable()


def pytest_collection_finish():
    """Leave what was collected out of each later search for garbage, which would walk through all of it."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish():
    """Leave out all when pytest searches for garbage at its end, five times: nothing of it is looked at any more."""
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Leave out what the marks of a grid leave out, except where a test is named with its parameters."""
    if config.getoption("--full-grids") or any("[" in each for each in config.args):
        return
    out = left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]
