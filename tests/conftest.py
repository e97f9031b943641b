# SPDX-License-Identifier: Apache-2.0
"""What every test needs: `helpers` importable wherever pytest is started, property tests that repeat, empty caches."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# The same examples in every run, and no time limit for one of them: a busy machine must not fail the suite.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")

# What OpenCL drivers compile goes to no user's home, and a test never finds what an older version of this package left.
# Set before anything is imported that reads it; the workers of a run inherit the folder of the process they come from.
_caches = None
if "POCL_CACHE_DIR" not in os.environ or "SMARTMEM_OPENCL_CACHE" not in os.environ:
    _caches = tempfile.TemporaryDirectory(prefix="smartmem-opencl-", ignore_cleanup_errors=True)
    for _variable, _folder in (("POCL_CACHE_DIR", "pocl"), ("SMARTMEM_OPENCL_CACHE", "smartmem")):
        (Path(_caches.name) / _folder).mkdir()
        os.environ.setdefault(_variable, str(Path(_caches.name) / _folder))


@pytest.fixture(autouse=True)
def same_threads():
    """A command that runs in this process leaves its number of threads there, and servers would inherit it."""
    before = os.environ.get("TVM_NUM_THREADS")
    yield
    os.environ.pop("TVM_NUM_THREADS", None)
    if before is not None:
        os.environ["TVM_NUM_THREADS"] = before


def pytest_addoption(parser):
    """Golden files are rewritten by whoever asks for it, and read by the diff."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files below tests/golden anew")
