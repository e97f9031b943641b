# SPDX-License-Identifier: Apache-2.0
"""OpenCL source of each kernel of a network, from its scheduled module or from a compiled folder."""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import tvm

from ...deploy.compilers import OBJECTS
from ...deploy.gpu_build import build_kernels
from ...deploy.textures import tir_pipeline
from ...errors import UserError

_MARK = "// Function: "
_LAUNCH = re.compile(r"^// Work group (\d+) (\d+) (\d+), grid (\d+) (\d+) (\d+)", re.MULTILINE)
_SUFFIX = re.compile(r"_kernel(_\d+)?$")


def programs(module: tvm.runtime.Module) -> dict[str, str]:
    """Return the OpenCL programs of a compiled module by the names of their kernels, each as a driver gets it."""
    found = {}
    if module.kind == "opencl":
        for part in module.inspect_source().split(_MARK)[1:]:
            name, _, code = part.partition("\n")
            found[name] = code
    for imported in module.imports:
        found |= programs(imported)
    return found


def kernel_programs(scheduled: tvm.IRModule, target: tvm.target.Target) -> dict[str, str]:
    """Return the OpenCL programs of a module of scheduled kernels by the names of their kernels."""
    kernels = {
        gvar: func.with_attr("global_symbol", gvar.name_hint)  # what lowering the graph would give them
        for gvar, func in scheduled.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    }
    with target:
        return programs(build_kernels(tvm.IRModule(kernels), target, tir_pipeline(scheduled, target)))


def folder_programs(folder: Path, library: str) -> dict[str, str]:
    """Return the OpenCL programs in the library of a compiled folder, which may be for another machine."""
    found: dict[str, str] = {}
    for content in _contents(folder / library):
        for part in content.decode("latin-1").split(_MARK)[1:]:
            name, _, code = part.partition("\n")
            code = code.partition("\0")[0]
            found.setdefault(name, code[: code.rfind("}") + 1] + "\n")
    return found


def _contents(path: Path) -> Iterator[bytes]:
    if path.name != OBJECTS:
        yield path.read_bytes()
        return
    with gzip.open(path) as packed, tarfile.open(fileobj=packed) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            if file is not None:
                yield file.read()


def function_of(kernel: str) -> str:
    """Return the name of the function that an OpenCL kernel comes from."""
    return _SUFFIX.sub("", kernel)


def launch_of(source: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the threads of a block and the blocks of a launch in three directions; None if they are not constant."""
    found = _LAUNCH.search(source)
    if found is None:
        return None
    numbers = tuple(map(int, found.groups()))
    return numbers[:3], numbers[3:]


def named(kernel: str, names: Iterable[str]) -> str:
    """Return the OpenCL kernel that a user's name or number refers to.

    Parameters
    ----------
    kernel : str
        The name of an OpenCL kernel or of its function, or its number from 1.

    Raises
    ------
    UserError
        If there is none.
    """
    names = list(names)
    if kernel.isdecimal() and 0 < int(kernel) <= len(names):
        return names[int(kernel) - 1]
    found = [each for each in names if kernel in (each, function_of(each))]
    if not found:
        near = get_close_matches(kernel, map(function_of, names), 3, 0.0)
        raise UserError(f"There is no kernel '{kernel}' among {len(names)}; the nearest names are {', '.join(near)}.")
    return found[0]
