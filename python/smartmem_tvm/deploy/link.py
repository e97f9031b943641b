# SPDX-License-Identifier: Apache-2.0
"""How the code for a CPU becomes a library: linked for this machine or by an NDK, or left as objects for the device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm.target import codegen

from ..errors import UserError
from .export import LIBRARY, OBJECTS

_NDK_PATTERN = "toolchains/llvm/prebuilt/*/bin/{arch}-linux-android*-clang++"
_HOW = (
    "{file} holds object files for {triple}: TVM's RPC server on the device links them when it loads {file}, if it "
    "finds a linker there; or unpack it and run {cc} -shared -fPIC -o {so} *.o -lm."
)
_NDK_CC = (
    "the NDK's compiler (done for you where TVM_NDK_CC or ANDROID_NDK_HOME is set): {arch}-linux-android<API>-clang++"
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
    compiler : str or None
        Links it; None where the file is an archive of objects.
    """

    file: str
    triple: str = ""
    compiler: str | None = None

    @property
    def how(self) -> str:
        """What is left for the user to do, empty if nothing."""
        if self.compiler:
            return ""
        arch = self.triple.split("-")[0]
        compiler = _NDK_CC.format(arch=arch) if "android" in self.triple else f"a compiler for {self.triple}: c++"
        return _HOW.format(file=self.file, so=LIBRARY, triple=self.triple, cc=compiler)

    def write(self, executable, folder: Path) -> None:
        """Export an executable of TVM's into `folder`."""
        options = {"cc": self.compiler, "options": ["-lm"]} if self.compiler and self.triple else {}
        executable.export_library(str(folder / self.file), **options)


def link_for(target: tvm.target.Target) -> Link:
    """How code for `target` is linked: by this machine's compiler, or by an NDK that the environment names.

    Raises
    ------
    UserError
        If this machine has no compiler for code of its own kind, or ``TVM_NDK_CC`` or ``ANDROID_NDK_HOME`` names
        none.
    """
    from tvm.support import cc

    triple = host_triple(target)
    if is_foreign(triple):
        compiler = _ndk_compiler(triple)
        return Link(LIBRARY if compiler else OBJECTS, triple, compiler)
    if cc.get_cc() is None:
        raise UserError("A compiled model is linked by a C++ compiler and there is none; install g++ or clang.")
    return Link(LIBRARY, "", cc.get_cc())


def host_triple(target: tvm.target.Target) -> str:
    """The LLVM triple of the CPU that runs the code for `target` or launches it; empty if the target names none."""
    host = target if target.kind.name == "llvm" else target.host
    return str(host.attrs.get("mtriple") or "") if host is not None else ""


def is_foreign(triple: str) -> bool:
    """Whether this machine can neither link nor run code for a triple."""
    here = codegen.llvm_get_system_triple()
    return bool(triple) and _platform(triple) != _platform(here)


def _platform(triple: str) -> tuple[str, bool]:
    return triple.split("-")[0], "android" in triple


def _ndk_compiler(triple: str) -> str | None:
    """The compiler of the NDK for the oldest Android that it knows, whose libraries every newer one loads."""
    named, ndk = os.environ.get("TVM_NDK_CC"), os.environ.get("ANDROID_NDK_HOME")
    if "android" not in triple or not (named or ndk):
        return None
    if named:
        if not Path(named).is_file():
            raise UserError(f"TVM_NDK_CC names {named}, which is no file: let it name the NDK's clang++.")
        return named
    pattern = _NDK_PATTERN.format(arch=triple.split("-")[0])
    levels = {int(path.name.split("android")[1].split("-")[0] or 0): path for path in Path(ndk).glob(pattern)}
    if not levels:
        raise UserError(f"ANDROID_NDK_HOME names {ndk}, which has no {pattern}: let it name an unpacked Android NDK.")
    return str(levels[min(levels)])
