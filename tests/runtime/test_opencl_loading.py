# SPDX-License-Identifier: Apache-2.0
"""How TVM comes by its OpenCL device: by itself, once, without a driver being started, and never against its will."""

import shutil
import sys
from importlib import metadata

import pytest

import _smartmem_opencl
from opencl_package import python

# A loader, or PoCL without one.
MAPPED = """
DRIVER = ["libOpenCL", "libpocl"]
def mapped():
    files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    return [bool([f for f in files for part in parts if part in f]) for parts in (["lib/opencl.so"], DRIVER)]
"""


@pytest.fixture
def fresh(monkeypatch):
    """The module as in a process that has not loaded the library; TVM does not say that this one has."""
    monkeypatch.setattr(_smartmem_opencl, "_library", None)
    monkeypatch.setattr(_smartmem_opencl, "_problem", None)
    monkeypatch.setattr("tvm_ffi.get_global_func", lambda name, allow_missing=False: None)
    return monkeypatch


def test_importing_tvm_is_enough(tmp_path):
    program = "import sys, tvm; print(tvm.opencl(0).exist, 'smartmem_tvm' in sys.modules)"
    assert python(tmp_path, program) == ["True False"]


def test_no_driver_is_started_by_an_import(tmp_path):
    program = MAPPED + "import tvm; print(mapped()); tvm.opencl(0).exist; print(mapped())"
    assert python(tmp_path, program) == ["[True, False]", "[True, True]"]


def test_importing_the_package_loads_it_where_tvm_was_told_not_to(tmp_path):
    program = "import tvm; print(tvm.opencl(0).exist); import smartmem_tvm; print(tvm.opencl(0).exist)"
    assert python(tmp_path, program, TVM_DEVICE_BACKEND_AUTOLOAD="0") == ["False", "True"]


def test_without_a_driver_tvm_works_and_the_device_does_not_exist(tmp_path):
    program = "import tvm; print(tvm.opencl(0).exist, tvm.cpu(0).exist)"
    assert python(tmp_path, program, SMARTMEM_OPENCL_LIBRARY="/no/such/library.so") == ["False True"]


def test_a_process_that_forks_after_the_import_may_use_the_device(tmp_path):
    program = """
import multiprocessing, tvm
def child():
    assert tvm.opencl(0).exist
multiprocessing.set_start_method("fork")
process = multiprocessing.Process(target=child)
process.start()
process.join()
print(process.exitcode, tvm.opencl(0).exist)
"""
    assert python(tmp_path, program) == ["0 True"]


def test_an_opencl_of_tvms_own_is_left_alone(tmp_path):
    program = (
        MAPPED
        + """
import tvm, tvm_ffi
tvm_ffi.register_global_func("device_api.opencl", lambda: None)
import _smartmem_opencl as ours
print(ours.load(), ours.problem(), mapped()[0])
"""
    )
    assert python(tmp_path, program, TVM_DEVICE_BACKEND_AUTOLOAD="0") == ["None None False"]


def test_another_copy_of_the_library_does_no_harm(tmp_path):
    shutil.copy(_smartmem_opencl.library_path(), tmp_path / "another.so")
    program = "import tvm, ctypes; ctypes.CDLL('./another.so'); print(tvm.opencl(0).exist)"
    assert python(tmp_path, program) == ["True"]


def test_loading_before_tvm_is_imported_imports_it(tmp_path):
    program = "import _smartmem_opencl as ours; print(ours.load() == str(ours.library_path()), ours.problem())"
    assert python(tmp_path, program) == ["True None"]


def test_loading_twice_opens_it_once():
    first = _smartmem_opencl.load()
    library = _smartmem_opencl._library
    assert first == str(_smartmem_opencl.library_path()) == _smartmem_opencl.load()
    assert _smartmem_opencl._library is library and _smartmem_opencl.problem() is None


def test_a_library_that_was_not_built_says_why(fresh, tmp_path):
    fresh.setattr(_smartmem_opencl, "library_path", lambda: tmp_path / "opencl.so")
    assert _smartmem_opencl.load() is None
    assert _smartmem_opencl.problem().startswith(f"there is no OpenCL library {tmp_path}/opencl.so: ")
    (tmp_path / "opencl.txt").write_text("no C++ compiler was found: install one\n")
    assert _smartmem_opencl.load() is None
    expected = "the OpenCL library was not built: no C++ compiler was found: install one; then reinstall smartmem-tvm."
    assert _smartmem_opencl.problem() == expected


def test_a_file_that_is_no_library_is_named(fresh, tmp_path):
    fresh.setattr(_smartmem_opencl, "library_path", lambda: tmp_path / "opencl.so")
    (tmp_path / "opencl.so").write_text("no library")
    assert _smartmem_opencl.load() is None
    assert str(tmp_path / "opencl.so") in _smartmem_opencl.problem()
    assert "reinstall smartmem-tvm" in _smartmem_opencl.problem()


def test_with_another_tvm_it_is_not_opened(fresh):
    versions = {"apache-tvm": "0.28.0", "apache-tvm-ffi": "0.1.14.post1"}
    fresh.setattr(metadata, "version", lambda name: versions[name])
    fresh.setattr(_smartmem_opencl.ctypes, "CDLL", lambda path: pytest.fail("opened"))
    assert _smartmem_opencl.load() is None
    assert "apache-tvm 0.28.0" in _smartmem_opencl.problem()


def test_the_module_needs_nothing_of_the_package(tmp_path):
    program = "import sys, _smartmem_opencl; print([m for m in ('tvm', 'numpy', 'smartmem_tvm') if m in sys.modules])"
    assert python(tmp_path, program) == ["[]"]
    assert "smartmem_tvm" in sys.modules
