# SPDX-License-Identifier: Apache-2.0
"""Export a folder that runs a compiled model without Python: program, libraries, model (``native/run``)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._version import TVM_PINS
from ..deploy.compilers import LIBRARY, cross_compiler, gnu_triple
from ..deploy.manifest import EXPLANATION, MANIFEST, PLAN, WEIGHTS, check_files, read_manifest
from ..errors import UserError
from ..whole_folder import whole_folder
from .phone import elf_machine

PROGRAM, INTERFACE, HEADER, MODEL = "smartmem_run", "libsmartmem_run.so", "smartmem_run.h", "model"
RUNTIME = ("libtvm_runtime.so", "libtvm_ffi.so")
_SORTING, _SORTS = "libtvm_runtime_extra.so", b"tvm.contrib."  # needed by code that calls these functions
# Places of the libraries: in a folder of libraries, and in TVM's installed wheels.
_PLACES = (".", "lib", "tvm/lib", "tvm_ffi/lib")
_PACKAGE = Path(__file__).resolve().parents[1]
# library -> CMake's option for it
_PARTS = {"opencl": "SMARTMEM_OPENCL", "stream": "SMARTMEM_STREAM", "threads": "SMARTMEM_THREADS"}
_SHARED_CXX, _OLDEST = (
    "libc++_shared.so",
    28,
)  # Android's C++ library; the oldest Android version that TVM's server is built for


@dataclass(frozen=True)
class Machine:
    """A kind of machine that a runner is built for.

    Attributes
    ----------
    triple : str
        LLVM's triple, empty for this machine's kind.
    libraries : tuple of Path
        Folders with TVM's libraries for it.
    toolchain : tuple of str
        CMake's options to build for it.
    """

    triple: str
    libraries: tuple[Path, ...]
    toolchain: tuple[str, ...] = ()

    def library(self, name: str) -> Path | None:
        """Return the path of a library of TVM, None if it is missing."""
        return next((folder / name for folder in self.libraries if (folder / name).is_file()), None)


def export_runner(folder: Path, output: Path, runtime: Path | None = None) -> dict:
    """Build the program for the machine that a model was compiled for, and collect its files in one folder.

    Parameters
    ----------
    folder : Path
        A compiled model from `deploy.export.save`.
    output : Path
        The folder to write, complete or not at all; an older one of this kind is replaced.
    runtime : Path, optional
        A folder with TVM's libraries for that machine; by default those of TVM's wheel here.

    Returns
    -------
    dict
        ``target``, ``host``, ``files`` (name -> bytes) and ``command``, which runs the model from within the folder.

    Raises
    ------
    UserError
        If the folder holds no model that a runner supports, the output would replace something else, or a compiler,
        CMake or TVM's libraries for that machine are missing.
    """
    manifest = read_manifest(folder, elsewhere=True, several=True)
    check_files(folder, manifest)
    check_output(output)
    parts = _parts(folder, manifest)
    machine = _machine(folder, manifest, runtime)
    libraries = _libraries(folder, machine, (folder / LIBRARY).read_bytes())
    with tempfile.TemporaryDirectory() as place:
        built = build(machine, parts, Path(place))
        files = [*built, *libraries, sources() / "run" / HEADER]
        with whole_folder(output) as partial:
            for file in files:
                shutil.copy(file, partial / file.name)
            _copy_model(folder, manifest, partial / MODEL)
            written = [path for path in sorted(partial.rglob("*")) if path.is_file()]
            sizes = {str(path.relative_to(partial)): path.stat().st_size for path in written}
    return {
        "target": manifest["target"],
        "host": machine.triple,
        "files": sizes,
        "command": f"./{PROGRAM} {MODEL}",
    }


def check_output(output: Path) -> None:
    """Refuse a folder that `export_runner` could not write, before the compilation.

    Raises
    ------
    UserError
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"Output folder {output} is a file; give another name.")
    ours = (output / PROGRAM).is_file() and (output / MODEL / MANIFEST).is_file()
    if output.is_dir() and any(output.iterdir()) and not ours:
        raise UserError(f"Output folder {output} exists and holds more or other than a runner; give another name.")


def sources() -> Path:
    """Return the folder of the native sources: in an installed package, or in the checkout."""
    inside, checkout = _PACKAGE / "native", _PACKAGE.parents[1] / "native"
    return inside if (inside / "run").is_dir() else checkout


def _parts(folder: Path, manifest: Mapping) -> list[str]:
    """Return the libraries of this package that the model calls: for its device, its threads, its memory budget."""
    from tvm.target import Target

    from ..target import is_cpu, is_opencl

    if manifest["library"] != LIBRARY:
        raise UserError(f"{folder} holds code that is not linked, and cannot run: {manifest['link']}")
    target = Target(manifest["target"])
    if not (is_cpu(target) or is_opencl(target)):
        raise UserError(
            f"{folder} was compiled for {target.kind.name}, and the runner runs on CPUs and OpenCL devices: compile it "
            f"for one of these."
        )
    return ["opencl" if is_opencl(target) else "threads", *(["stream"] if "stream" in manifest else [])]


def _machine(folder: Path, manifest: Mapping, runtime: Path | None) -> Machine:
    triple = manifest["host"]
    if runtime is None and triple:
        raise UserError(
            f"{folder} was compiled for {triple}, whose {' and '.join(RUNTIME)} of TVM {TVM_PINS['apache-tvm']} are "
            f"needed and not here: name a folder that holds them with --runtime FOLDER{_where_from(triple)}."
        )
    machine = Machine(triple, _places(runtime), _toolchain(triple))
    wanted = elf_machine(folder / manifest["library"])
    for name in RUNTIME:
        file = machine.library(name)
        if file is None:
            raise UserError(f"{runtime} has no {name}: give --runtime a folder with {' and '.join(RUNTIME)}.")
        if elf_machine(file) != wanted:
            raise UserError(
                f"{file} is for another CPU (ELF machine {elf_machine(file)}) than {folder} ({wanted}): give --runtime "
                f"TVM's libraries for {triple or 'this machine'}."
            )
    return machine


def _where_from(triple: str) -> str:
    """Return the end of a sentence on how to get TVM's libraries."""
    if "android" in triple:
        return " (docs/android.md says how to build them)"
    pins = " ".join(f"{name}=={version}" for name, version in TVM_PINS.items())
    platform = f"manylinux_2_28_{triple.split('-')[0]}"
    return f" (`pip install --target FOLDER --platform {platform} --only-binary=:all: --no-deps {pins}` makes one)"


def _places(runtime: Path | None) -> tuple[Path, ...]:
    if runtime is not None:
        return tuple((runtime / place).resolve() for place in _PLACES if (runtime / place).is_dir())
    found = (importlib.util.find_spec(name).origin for name in ("tvm", "tvm_ffi"))
    return tuple(Path(origin).parent / "lib" for origin in found)


def _toolchain(triple: str) -> tuple[str, ...]:
    """Return CMake's options to build for a triple."""
    if not triple:
        return ()
    compiler = cross_compiler(triple)
    if "android" in triple:
        home = os.environ.get("ANDROID_NDK_HOME")
        if not home:
            raise UserError(f"The runner for {triple} is built by Android's NDK: let ANDROID_NDK_HOME name it.")
        level = re.search(r"android(\d+)-clang", compiler.command[0])
        toolchain = Path(home) / "build" / "cmake" / "android.toolchain.cmake"
        abi = (
            "-DANDROID_ABI=arm64-v8a",
            f"-DANDROID_PLATFORM=android-{level[1] if level else _OLDEST}",
            "-DANDROID_STL=c++_shared",
        )
        return (f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", *abi)
    if compiler is None or not compiler.command[0].endswith("g++"):
        name = f"g++-{gnu_triple(triple).replace('_', '-')}"
        raise UserError(f"The runner for {triple} is C++, and no g++ for it is here: `apt-get install {name}`.")
    system = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={triple.split('-')[0]}")
    return (*system, f"-DCMAKE_CXX_COMPILER={compiler.command[0]}")


def _program(name: str) -> str | None:
    """Return the path of a program on PATH, or beside this Python, where pip installs programs."""
    paths = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    return shutil.which(name, path=paths)


def build(machine: Machine, parts: Sequence[str], place: Path, kind: str = "Release") -> list[Path]:
    """Build the program and libraries of this package; libraries already built for this machine are only listed.

    Parameters
    ----------
    parts : sequence of str
        Needed libraries besides the runner's own: ``opencl``, ``stream``, ``threads``.
    place : Path
        The folder of the build.
    kind : str
        CMake's build type.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UserError
        If CMake or a compiler is missing or fails.
    """
    cmake, tools = _tools(machine)
    ready = {part: _PACKAGE / "lib" / f"{part}.so" for part in parts if not machine.triple}
    ready = {part: file for part, file in ready.items() if file.exists()}
    missing = [part for part in parts if part not in ready]
    options = [f"-D{option}={'ON' if part in missing else 'OFF'}" for part, option in _PARTS.items()]
    found = (importlib.util.find_spec(name).origin for name in ("tvm", "tvm_ffi"))
    include = ";".join(str(Path(origin).parent / "include") for origin in found)
    libraries = ";".join(map(str, machine.libraries))
    facts = [f"-DTVM_INCLUDE={include}", f"-DTVM_LIBRARIES={libraries}", f"-DCMAKE_BUILD_TYPE={kind}"]
    _call([cmake, "-S", str(sources() / "run"), "-B", str(place), *tools, *machine.toolchain, *facts, *options])
    _call([cmake, "--build", str(place), "--parallel", str(len(os.sched_getaffinity(0)))])
    return [place / PROGRAM, place / INTERFACE, *ready.values(), *(place / f"{part}.so" for part in missing)]


def _tools(machine: Machine) -> tuple[str, list[str]]:
    """Return CMake's path and its options for the build tool."""
    cmake, ninja = _program("cmake"), _program("ninja")
    compiler = machine.triple or os.environ.get("CXX") or any(map(_program, ("g++", "c++", "clang++")))
    maker = ninja or _program("make")
    if not (cmake and compiler and maker):
        lacks = "CMake" if not cmake else "C++ compiler" if not compiler else "make or ninja"
        raise UserError(
            f"The runner is built by CMake, make or ninja and a C++ compiler, and there is no {lacks}: install it, "
            f"`apt-get install cmake make g++` on Debian and Ubuntu."
        )
    return cmake, ["-G", "Ninja" if ninja else "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={maker}"]


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    said = next((line for line in lines if "error: " in line), " ".join(lines[:4]) or f"exit code {done.returncode}")
    raise UserError(f"The runner could not be built ({said.rstrip('.:')}): use GCC 10, Clang 12 or newer.")


def _libraries(folder: Path, machine: Machine, code: bytes) -> list[Path]:
    """Return TVM's libraries that a model's code needs on a machine, and Android's C++ library."""
    found = [machine.library(name) for name in RUNTIME]
    if _SORTS in code:
        extra = machine.library(_SORTING)
        if extra is None:
            raise UserError(
                f"{folder} sorts or draws random numbers, and there is no {_SORTING}: put it to the others."
            )
        found.append(extra)
    if "android" in machine.triple:
        arch = machine.triple.split("-")[0]
        pattern = f"toolchains/llvm/prebuilt/*/sysroot/usr/lib/{arch}-linux-android/{_SHARED_CXX}"
        found += sorted(Path(os.environ["ANDROID_NDK_HOME"]).glob(pattern))[:1]
    return found


def _copy_model(folder: Path, manifest: Mapping, place: Path) -> None:
    place.mkdir()
    for name in (manifest["library"], WEIGHTS, MANIFEST, EXPLANATION, *([PLAN] if "stream" in manifest else [])):
        if (folder / name).exists():
            shutil.copy(folder / name, place / name)
