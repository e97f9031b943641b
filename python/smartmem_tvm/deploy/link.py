# SPDX-License-Identifier: Apache-2.0
"""Link code for a CPU: for this machine, for another one, or leave object files for the device's linker."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm.support import cc
from tvm.target import codegen

from .._tvm import write_library
from ..errors import UserError
from ..target import host_triple
from ..tune.host import usable_cores
from .compilers import LIBRARY, OBJECTS, CrossCompiler, cross_compiler, remedy

_HOW = (
    "{file} holds object files for {triple}: TVM's RPC server on the device links them when it loads {file}, if it "
    "finds a linker there; or unpack it and run {cc} -shared -fPIC -o {so} *.o -lm."
)


@dataclass(frozen=True)
class Link:
    """The way in which the library of a compiled model is written.

    Attributes
    ----------
    file : str
        Name of the library; its suffix tells TVM how to load it.
    triple : str
        LLVM triple of the CPU, empty for this machine's kind.
    compiler : CrossCompiler or None
        The compiler that links; None for this machine's own compiler, or if the file is an archive of objects.
    """

    file: str
    triple: str = ""
    compiler: CrossCompiler | None = None

    @property
    def how(self) -> str:
        """Instructions for the step left to the user, empty if none is left."""
        if self.file == LIBRARY:
            return ""
        return _HOW.format(file=self.file, so=LIBRARY, triple=self.triple, cc=remedy(self.triple))

    def write(self, executable, folder: Path) -> None:
        """Export one of TVM's executables into `folder`."""
        here = _archive if self.file == OBJECTS else cc.create_shared
        together = self.compiler.link if self.compiler else here
        write_library(executable, str(folder / self.file), together, usable_cores())


def _archive(output: str, files: Sequence[str]) -> None:
    """Write a reproducible archive; TVM's own contains the time, the user and the order of the folder."""
    # Level 9, the default, takes four times as long for 2% less.
    with (
        gzip.GzipFile(output, "wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(map(Path, files)):
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(entry, file)


def linked(executable, target: tvm.target.Target, folder: str | None = None) -> str:
    """Write code into a folder, by default a new one, and return the file."""
    place, link = Path(folder or tempfile.mkdtemp()), link_for(target)
    link.write(executable, place)
    return str(place / link.file)


def link_for(target: tvm.target.Target) -> Link:
    """Return how to link code for `target`: with this machine's compiler, or a cross compiler that is found here.

    If this machine has no compiler for itself, zig from PyPI is used.

    Raises
    ------
    UserError
        If this machine has no compiler for its own kind of code, or ``TVM_NDK_CC`` or ``ANDROID_NDK_HOME`` is set, but
        names no compiler.
    """
    triple = host_triple(target)
    if is_foreign(triple):
        compiler = cross_compiler(triple)
        return Link(LIBRARY if compiler else OBJECTS, triple, compiler)
    if cc.get_cc() is not None:
        return Link(LIBRARY)
    if (compiler := cross_compiler(codegen.llvm_get_system_triple())) is not None:
        return Link(LIBRARY, compiler=compiler)
    raise UserError(
        "A compiled model is linked by a C++ compiler and there is none; install g++, or `pip install ziglang`."
    )


def is_foreign(triple: str) -> bool:
    """Whether this machine can neither link nor run code for a triple."""
    here = codegen.llvm_get_system_triple()
    return bool(triple) and _platform(triple) != _platform(here)


def _platform(triple: str) -> tuple[str, bool]:
    return triple.split("-")[0], "android" in triple
