# SPDX-License-Identifier: Apache-2.0
"""Lets our OpenCL library compile kernels in other processes, before they are launched.

PoCL compiles one kernel at a time, and most of it only at the first launch, for that size of work group. TVM knows the
size when it generates the source, and does not tell. So we write it into the source, where a kernel then begins with::

    // Work group 8 8 1, grid 98 3 1

and the library (``native/compile_worker.h``) has workers compile for that size. A worker is a Python that calls one
function of the library: there is no other program that is sure to be on the machine and loads it.

A driver that does not know the size gives a work-item registers as if it were small, and cannot launch a large one then
(NVIDIA's, with float64). So the definition of a kernel with a large work-group states it to the driver too.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from pathlib import Path
from typing import Any

import tvm_ffi

from _smartmem_opencl_vectors import align_vectors

_BUILD = "target.build.opencl"
_CREATE = "ffi.Module.create.opencl"

_SIZED = re.compile(
    r"^(?P<mark>// Function: .*)$|^// Work group (?P<sizes>[\d ]+),|^__kernel void (?P<name>\w+\(.*\{)$", re.MULTILINE
)

# Its arguments are TVM's libraries and ours, in the order of loading.
_WORKER = """
import ctypes, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
sys.exit(libraries[-1].smartmem_opencl_compile())
"""

# Every driver launches work-groups of so many items, whatever registers they take.
_SMALL = 256

_sizes = threading.local()


def install() -> None:
    """Tell the library how to start a worker, and wrap TVM's code generator for OpenCL; call it once."""
    if _is_interpreter():
        tvm_ffi.get_global_func("smartmem.opencl.worker")([sys.executable, "-I", "-S", "-c", _WORKER])
    if tvm_ffi.get_global_func(_BUILD, allow_missing=True) is None:
        return  # TVM without its compiler
    build, create = tvm_ffi.get_global_func(_BUILD), tvm_ffi.get_global_func(_CREATE)

    def build_with_sizes(mod: Any, target: Any) -> Any:
        _sizes.lines = {var.name_hint: _line(func) for var, func in mod.functions.items()}
        try:
            return build(mod, target)
        finally:
            _sizes.lines = {}

    def create_with_sizes(code: bytes, kind: str, functions: Any, source: Any) -> Any:
        lines = getattr(_sizes, "lines", {})
        if lines:
            known: dict[str, str] = {}
            code = _mend(code.decode(), lines, known).encode()
            source = {name: _mend(text, lines, known) for name, text in source.items()}
        return create(code, kind, functions, source)

    tvm_ffi.register_global_func(_BUILD, build_with_sizes, override=True)
    tvm_ffi.register_global_func(_CREATE, create_with_sizes, override=True)


def _is_interpreter() -> bool:
    """Whether what `sys.executable` names runs code that it is given; a frozen or embedding program runs itself."""
    name = Path(sys.executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def _mend(code: str, lines: dict[str, str], known: dict[str, str]) -> str:
    return _require(_annotate(align_vectors(code, known), lines))


def _annotate(code: str, lines: dict[str, str]) -> str:
    return re.sub(r"^// Function: (\S+)\n", lambda mark: mark[0] + lines.get(mark[1], ""), code, flags=re.MULTILINE)


def _require(code: str) -> str:
    """State large work-groups in the definitions of their kernels."""
    sizes: tuple[str, ...] = ()

    def state(found: re.Match) -> str:
        nonlocal sizes
        if found["mark"]:
            sizes = ()
        elif found["sizes"]:
            sizes = tuple(found["sizes"].split())
        elif found["name"] and math.prod(map(int, sizes)) > _SMALL:
            return f"__kernel void __attribute__((reqd_work_group_size({', '.join(sizes)}))) {found['name']}"
        return found[0]

    return _SIZED.sub(state, code)


def _line(func: Any) -> str:
    """The line about a kernel; empty unless every extent is a constant."""
    from tvm import tirx

    extents = dict.fromkeys((f"{kind}.{axis}" for kind in ("threadIdx", "blockIdx") for axis in "xyz"), 1)

    def note(attr: Any) -> None:
        if attr.attr_key == "thread_extent":
            extents[attr.node.thread_tag] = attr.value

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, note))
    if not all(isinstance(extent, int | tirx.IntImm) for extent in extents.values()):
        return ""
    numbers = [str(int(extent)) for extent in extents.values()]
    return f"// Work group {' '.join(numbers[:3])}, grid {' '.join(numbers[3:6])}\n"
