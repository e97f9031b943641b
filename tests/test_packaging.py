# SPDX-License-Identifier: Apache-2.0
"""The build of the OpenCL library, with and without its requirements, and the declarations of setup.py."""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from opencl_package import ROOT, declared
from smartmem_tvm import _version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = """
#include "number.h"
#if __has_include(<Python.h>) || __has_include(<CL/cl.h>)
#error "headers that not every machine has"
#endif
#include <tvm/ffi/function.h>
extern "C" __attribute__((visibility("default"))) int number() { return NUMBER; }
"""


@pytest.fixture
def native(monkeypatch, tmp_path):
    """native/build.py, to work on a folder with one small source."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.setattr(module, "NATIVE", tmp_path / "native")
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "small.cc").write_text(SOURCE)
    (tmp_path / "native" / "number.h").write_text("#define NUMBER 1\n")
    return module


def built(native, tmp_path):
    return native.build(tmp_path / "lib" / "opencl.so", tmp_path / "objects")


def number(library) -> int:
    """Read the number in a process of its own, as a process keeps a library that it has opened."""
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).number())"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def test_the_opencl_driver_is_for_the_machines_that_it_exists_for():
    extras = declared()["extras_require"]
    only = "pocl-binary-distribution; sys_platform == 'linux' and platform_machine == 'x86_64'"
    assert extras["pocl"] == [only] and only in extras["dev"]
    assert not any(";" in name for name in extras["tune"])


def test_the_build_needs_the_pinned_tvm():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {f"{name}=={version}" for name, version in _version.TVM_PINS.items()} <= set(requires)


def test_a_compiler_is_all_it_takes(native, tmp_path):
    assert number(built(native, tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.rglob("*.tmp")) == []


def test_a_changed_header_compiles_again_and_nothing_else_does(native, tmp_path):
    built(native, tmp_path)
    (compiled,) = tmp_path.rglob("small.o")
    first = compiled.stat().st_mtime_ns
    built(native, tmp_path)
    assert compiled.stat().st_mtime_ns == first
    header = tmp_path / "native" / "number.h"
    header.write_text("#define NUMBER 2\n")
    later = first / 1e9 + 10
    os.utime(header, (later, later))
    assert number(built(native, tmp_path)) == 2


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("false", r"false failed on small \(exit code 1\): use GCC 10, Clang 12 or newer"),
        ("/no/such/compiler", "/no/such/compiler could not be started .*: correct CXX"),
        ("", "no C[+][+] compiler was found: install one"),
    ],
)
def test_without_a_compiler_it_says_so(native, tmp_path, monkeypatch, compiler, message):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(native.BuildError, match=message):
        built(native, tmp_path)


def test_an_error_in_the_source_is_shown_and_leaves_nothing(native, tmp_path, capfd):
    (tmp_path / "native" / "small.cc").write_text("int number() { return unknown; }\n")
    with pytest.raises(native.BuildError, match=r"failed on small \(.*error: .*unknown"):
        built(native, tmp_path)
    assert "unknown" in capfd.readouterr().err
    assert not [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_another_tvm_is_not_compiled_against(native, tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.28.0")
    with pytest.raises(native.BuildError, match=r"does not work on apache-tvm 0.28.0 .*: run `pip install"):
        built(native, tmp_path)


def test_objects_of_other_flags_are_not_linked(native, tmp_path, monkeypatch):
    (tmp_path / "native" / "small.cc").write_text(SOURCE.replace("NUMBER", "NUMBER + MORE"))
    for more in (10, 20):
        monkeypatch.setenv("CXXFLAGS", f"-DMORE={more}")
        assert number(built(native, tmp_path)) == 1 + more


def test_an_installation_without_compiler_goes_on_and_leaves_the_reason(tmp_path):
    command = [sys.executable, "setup.py", "-q", "build_native", f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"]
    environment = {**os.environ, "CXX": "false"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    reason = (tmp_path / "smartmem_tvm" / "lib" / "opencl.txt").read_text(encoding="utf-8").strip()
    assert reason.startswith("false failed on ") and "\n" not in reason
    assert f"smartmem-tvm is installed without OpenCL: {reason}." in done.stderr.splitlines()


def test_a_source_distribution_holds_every_source_of_the_library():
    import setuptools

    arguments = declared()
    command = arguments["cmdclass"]["build_native"](setuptools.Distribution())
    needed = {str(path.relative_to(ROOT)) for path in (ROOT / "native").rglob("*.*") if path.suffix in (".cc", ".h")}
    files = set(command.get_source_files())
    assert needed and needed | {"native/build.py", "native/run/CMakeLists.txt"} <= files
    assert not [file for file in files if "__pycache__" in file]


def test_an_installation_holds_what_the_runner_is_built_from(tmp_path):
    command = [sys.executable, "setup.py", "-q", "build_native", f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "CXX": "false"}, capture_output=True, check=True)
    native = tmp_path / "smartmem_tvm" / "native"
    for folder in (".", "run", "run/program", "stream", "threads"):
        names = {path.name for path in (ROOT / "native" / folder).iterdir() if path.suffix in (".cc", ".h", ".txt")}
        assert names == {path.name for path in (native / folder).iterdir() if path.is_file()}
    assert (native / "compat" / "tvm" / "support" / "io.h").is_file()


def test_tvm_and_the_shell_find_us():
    arguments = declared()
    assert arguments["entry_points"]["tvm.backends"] == [
        "smartmem_opencl = _smartmem_opencl:autoload",
        "smartmem_pipeline = _smartmem_pipeline:autoload",
    ]
    assert {"_smartmem_opencl", "_smartmem_pipeline"} <= set(arguments["py_modules"])
