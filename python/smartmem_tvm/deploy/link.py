# SPDX-License-Identifier: Apache-2.0
"""How the code for a CPU becomes a library: linked for this machine or another, or left as objects for the device."""

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
    """How a compiled model is written.

    Attributes
    ----------
    file : str
        Name of the library, by whose ending TVM knows how to load it.
    triple : str
        The CPU it is for, empty for the kind of this machine.
    compiler : CrossCompiler or None
        Links it for another CPU; None for this machine's, and where the file is an archive of objects.
    """

    file: str
    triple: str = ""
    compiler: CrossCompiler | None = None

    @property
    def how(self) -> str:
        """What is left for the user to do, empty if nothing."""
        if self.file == LIBRARY:
            return ""
        return _HOW.format(file=self.file, so=LIBRARY, triple=self.triple, cc=remedy(self.triple))

    def write(self, executable, folder: Path) -> None:
        """Export an executable of TVM's into `folder`."""
        here = _archive if self.file == OBJECTS else cc.create_shared
        together = self.compiler.link if self.compiler else here
        write_library(executable, str(folder / self.file), together, usable_cores())


def _archive(output: str, files: Sequence[str]) -> None:
    """The same bytes for the same files: TVM's own has the time, the user and the folder's order in it."""
    # Level 9, the default, takes four times as long for a fiftieth less.
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
    """How code for `target` is linked: by this machine's compiler, or by one for the target's CPU that is found here.

    Where this machine has no compiler for itself, zig's from PyPI will do.

    Raises
    ------
    UserError
        If this machine has no compiler for code of its own kind, or ``TVM_NDK_CC`` or ``ANDROID_NDK_HOME`` names
        none.
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
