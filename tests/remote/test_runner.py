# SPDX-License-Identifier: Apache-2.0
"""What a runner is built from and for, without building it: `tests/cli/test_export.py` does."""

from pathlib import Path

import pytest

from smartmem_tvm import UserError
from smartmem_tvm.remote import runner

AARCH64, X86 = 183, 62


def elf(path: Path, machine: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little"))
    return path


@pytest.fixture
def compiled(tmp_path):
    """A folder for a board, as far as `_machine` looks at it, and its manifest."""
    elf(tmp_path / "model" / "lib.so", AARCH64)
    return tmp_path / "model", {"host": "aarch64-unknown-linux-gnu", "library": "lib.so"}


def wheels(place: Path, machine: int = AARCH64) -> Path:
    """TVM's libraries as pip unpacks them."""
    elf(place / "tvm" / "lib" / "libtvm_runtime.so", machine)
    elf(place / "tvm_ffi" / "lib" / "libtvm_ffi.so", machine)
    return place


def test_the_libraries_for_a_board_are_named_by_an_option(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_toolchain", lambda triple: ())
    with pytest.raises(UserError, match=r"were? needed|are needed") as error:
        runner._machine(*compiled, None)
    assert "--runtime FOLDER (`pip install --target FOLDER --platform manylinux_2_28_aarch64" in str(error.value)
    machine = runner._machine(*compiled, wheels(tmp_path / "site"))
    assert machine.library("libtvm_ffi.so") == tmp_path / "site" / "tvm_ffi" / "lib" / "libtvm_ffi.so"
    assert machine.library("libtvm_runtime_extra.so") is None


def test_libraries_that_are_not_those_of_the_machine_are_refused(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_toolchain", lambda triple: ())
    with pytest.raises(UserError, match=r"libtvm_runtime.so is for another CPU \(ELF machine 62\) than .* \(183\)"):
        runner._machine(*compiled, wheels(tmp_path / "site", X86))
    with pytest.raises(UserError, match=r"has no libtvm_runtime.so: give --runtime"):
        runner._machine(*compiled, tmp_path)


def test_a_compiler_for_the_board_is_called_by_cmake(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}" if name.endswith("g++") else None)
    assert runner._toolchain("") == ()
    assert runner._toolchain("aarch64-unknown-linux-gnu") == (
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=/usr/bin/aarch64-linux-gnu-g++",
    )


def test_without_a_compiler_for_the_board_it_says_which(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    with pytest.raises(UserError, match=r"no g[+][+] for it is here: `apt-get install g[+][+]-aarch64-linux-gnu`"):
        runner._toolchain("aarch64-linux-gnu")


def test_the_ndk_is_called_by_its_toolchain_file(tmp_path, monkeypatch):
    folder = tmp_path / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64"
    for level in (28, 34):
        elf(folder / "bin" / f"aarch64-linux-android{level}-clang++", X86)
    shared = elf(folder / "sysroot" / "usr" / "lib" / "aarch64-linux-android" / "libc++_shared.so", AARCH64)
    monkeypatch.delenv("TVM_NDK_CC", raising=False)
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(UserError, match="let ANDROID_NDK_HOME name it"):
        runner._toolchain("aarch64-linux-android")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    options = runner._toolchain("aarch64-linux-android")
    assert options[0] == f"-DCMAKE_TOOLCHAIN_FILE={tmp_path}/build/cmake/android.toolchain.cmake"
    assert {"-DANDROID_ABI=arm64-v8a", "-DANDROID_PLATFORM=android-28", "-DANDROID_STL=c++_shared"} <= {*options}
    machine = runner.Machine("aarch64-linux-android", (wheels(tmp_path / "site") / "tvm" / "lib",))
    assert runner._libraries(shared.parent, machine, b"")[-1] == shared


@pytest.mark.parametrize("lacking", ["CMake", "C++ compiler", "make or ninja"])
def test_what_is_lacking_to_build_is_named(lacking, monkeypatch):
    there = {"CMake": ["g++", "make"], "C++ compiler": ["cmake", "ninja"], "make or ninja": ["cmake", "g++"]}[lacking]
    monkeypatch.setattr(runner, "_program", lambda name: name if name in there else None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"there is no .*: install it, `apt-get install cmake make g") as error:
        runner.build(runner.Machine("", ()), [], Path())
    assert f"there is no {lacking}: " in str(error.value)


def test_code_that_sorts_takes_the_library_that_does(tmp_path):
    code, machine = b"..tvm.contrib.sort.argsort..", runner.Machine("", (tmp_path,))
    with pytest.raises(UserError, match=r"there is no libtvm_runtime_extra.so"):
        runner._libraries(tmp_path, machine, code)
    extra = elf(tmp_path / "libtvm_runtime_extra.so", X86)
    assert runner._libraries(tmp_path, machine, code)[-1] == extra


def test_the_sources_are_in_the_checkout_or_in_the_package(tmp_path, monkeypatch):
    assert (runner.sources() / "run" / "CMakeLists.txt").is_file()
    monkeypatch.setattr(runner, "_PACKAGE", tmp_path)
    (tmp_path / "native" / "run").mkdir(parents=True)
    assert runner.sources() == tmp_path / "native"
