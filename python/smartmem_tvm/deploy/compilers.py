# SPDX-License-Identifier: Apache-2.0
"""Compilers that link for another CPU: the NDK's, Debian's, or zig's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError

LIBRARY, OBJECTS = "lib.so", "lib.tar"  # a linked library; object files for the device's linker
_NDK_PATTERN = "toolchains/llvm/prebuilt/*/bin/{arch}-linux-android*-clang++"
_NDK_REMEDY = "the NDK's compiler (done for you where TVM_NDK_CC or ANDROID_NDK_HOME is set): "
_GNU_REMEDY = "a compiler for {triple} (done for you after `apt-get install g++-{triple}` or `pip install ziglang`): "


@dataclass(frozen=True)
class CrossCompiler:
    """A compiler for another CPU.

    Attributes
    ----------
    triple : str
        The LLVM triple that it links for.
    command : tuple of str
        The program, and the arguments that choose the CPU.
    """

    triple: str
    command: tuple[str, ...]

    def link(self, library: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        """Link a shared library; TVM's ``export_library`` takes this method as its ``fcompile``.

        Raises
        ------
        UserError
            If the compiler cannot run or link.
        """
        command = [*self.command, "-shared", "-fPIC", "-o", library, *options, *objects, "-lm"]
        name = " ".join(self.command)
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise UserError(f"{name} cannot be run ({error.strerror}): correct or remove it.") from error
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if line.strip()), f"exit code {done.returncode}")
            raise UserError(
                f"{name} cannot link for {self.triple} ({said.strip()}): install its C library, or remove it."
            )


def cross_compiler(triple: str) -> CrossCompiler | None:
    """Return the compiler for an LLVM triple other than this machine's, None if there is none.

    Raises
    ------
    UserError
        If ``TVM_NDK_CC`` or ``ANDROID_NDK_HOME`` is set, but names no compiler.
    """
    if not _is_linux(triple):
        return None
    command = _ndk(triple) if _is_android(triple) else _debian(triple) or _zig(triple)
    return CrossCompiler(triple, command) if command else None


def remedy(triple: str) -> str:
    """Return a phrase for errors: a compiler for a triple and how to get it, ending with the name of the program."""
    if _is_android(triple):
        return f"{_NDK_REMEDY}{triple.split('-')[0]}-linux-android<API>-clang++"
    if not _is_linux(triple):
        return f"a compiler for {triple}: c++"
    short = gnu_triple(triple)
    return f"{_GNU_REMEDY.format(triple=short)}{short}-g++"


def gnu_triple(triple: str) -> str:
    """Return an LLVM triple without the vendor, as Debian and zig write it."""
    parts = triple.split("-")
    return "-".join([parts[0], *parts[2:]]) if len(parts) > 3 else triple


def _is_android(triple: str) -> bool:
    return "android" in triple


def _is_linux(triple: str) -> bool:
    return "linux" in triple.split("-")


def _debian(triple: str) -> tuple[str, ...]:
    # The objects need only C, so gcc is enough on a distribution without g++ for this CPU.
    found = (shutil.which(f"{gnu_triple(triple)}-{name}") for name in ("g++", "gcc"))
    return tuple(path for path in found if path)[:1]


def _zig(triple: str) -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is None:
        return ()
    # Not c++: zig would first compile its own C++ library, which takes a minute and is not needed.
    return (sys.executable, "-m", "ziglang", "cc", "-target", gnu_triple(triple))


def _ndk(triple: str) -> tuple[str, ...]:
    """Return the NDK's compiler for the oldest Android that it supports; every newer Android loads its libraries."""
    named, ndk = os.environ.get("TVM_NDK_CC"), os.environ.get("ANDROID_NDK_HOME")
    if not (named or ndk):
        return ()
    if named:
        if not Path(named).is_file():
            raise UserError(f"TVM_NDK_CC names {named}, which is no file: let it name the NDK's clang++.")
        return (named,)
    pattern = _NDK_PATTERN.format(arch=triple.split("-")[0])
    levels = {int(path.name.split("android")[1].split("-")[0] or 0): path for path in Path(ndk).glob(pattern)}
    if not levels:
        raise UserError(f"ANDROID_NDK_HOME names {ndk}, which has no {pattern}: let it name an unpacked Android NDK.")
    return (str(levels[min(levels)]),)
