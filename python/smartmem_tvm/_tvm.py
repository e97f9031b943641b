# SPDX-License-Identifier: Apache-2.0
"""The one module that depends on TVM's version; it checks the version before any other use of TVM.

Every name of TVM that moves between versions is here. Work-arounds for TVM's faults are in ``tvm_mends/``; three of its
files take effect with this import.
"""

# ruff: noqa: E402  (the check is before the imports)
from smartmem_tvm._version import version_problem

_problem = version_problem()
if _problem is not None:
    raise ImportError(_problem)

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.relax import vm_build
from tvm.runtime import _ffi_api as module_api
from tvm_ffi.structural import WalkOrder, _callback_type_to_type_index, _ffi_api

import _smartmem_opencl
from smartmem_tvm.errors import CheckError, UserError
from smartmem_tvm.thread_pool import use_own_threads
from smartmem_tvm.tvm_mends import array_iteration, intrinsics, quiet_legalize  # noqa: F401  (imported for their effect)

# Modules that are opened or compiled from here on run their loops on this package's threads.
use_own_threads()

# Loaded now, because a module generated for OpenCL before TVM has a device can never run.
_smartmem_opencl.load()

# An error that a pass raises comes back from TVM as the same type, and not as a RuntimeError.
tvm_ffi.register_error("UserError", UserError)
tvm_ffi.register_error("CheckError", CheckError)
# Otherwise Ctrl-C in a callback becomes a RuntimeError without a message, like an error of a kernel.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


_LINE = re.compile(rb"^\[[\d:]+\] /\S+: Warning: ")


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings of TVM's C++ code on stderr meanwhile; all other text still appears.

    For TVM's own graph of a model: TVM advises how to write it better (powers), once for each kernel, but the graph is
    not this package's to change.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            written.seek(0)
            for line in written:
                if not _LINE.match(line):
                    os.write(2, line)


def end_blocks(builder: relax.BlockBuilder) -> None:
    """End the blocks that an error has left open: TVM prints a warning when it deletes a builder with open blocks."""
    with contextlib.suppress(Exception):  # raised when no block is open
        while True:
            builder._end_block()


TEXTURE_LOAD, TEXTURE_STORE = map(ir.Op.get, ("tirx.texture2d_load", "tirx.texture2d_store"))


_ORDERS = {"pre": int(WalkOrder.PREORDER), "post": int(WalkOrder.POSTORDER)}


@lru_cache(maxsize=256)
def _type_indexes(kind: type | tuple[type, ...]) -> tuple[int, ...]:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return tuple(_callback_type_to_type_index(each, api_name="structural_walk") for each in kinds)


def walk(root, *callbacks: tuple, order: str = "post") -> None:
    """Run ``tvm_ffi.structural_walk`` with pairs of a kind and a callback.

    Work-around: ``structural_walk`` looks the kinds up in each call, which takes longer than walking an index.
    """
    _ffi_api.StructuralWalk(root, _entries(callbacks), [], _ORDERS[order])


def mapped(root, *callbacks: tuple, order: str = "post"):
    """Run ``tvm_ffi.structural_map`` with pairs of a kind and a callback, for the same reason as `walk`."""
    return _ffi_api.StructuralMap(root, _entries(callbacks), [], _ORDERS[order])


def simplified(analyzer: sym.Analyzer, expr):
    """Return an expression simplified, or as it is where TVM's simplifier fails.

    Of ``load < k`` with a `k` that is 0 by its range, it makes a comparison with a 0 of 32 bits, whatever the load has,
    and cannot negate that later.
    """
    try:
        return analyzer.simplify(expr)
    except TypeError:
        return expr


def _entries(callbacks: tuple) -> list[tuple[int, Callable]]:
    return [(index, callback) for kind, callback in callbacks for index in _type_indexes(kind)]


def renamed(gvar: ir.GlobalVar, name: str) -> ir.GlobalVar:
    """Return a new variable of another name with the type of `gvar`, which TVM's mutators of calls ask for."""
    new = ir.GlobalVar(name)
    relax.expr._update_type(new, gvar.ty)
    return new


def with_type(gvar: ir.GlobalVar, func: relax.Function) -> ir.GlobalVar:
    """Return the variable of a function with its type, which passes may drop, and calls need."""
    if gvar.ty.is_missing():
        relax.expr._update_type(gvar, relax.FuncType([each.ty for each in func.params], func.ret_ty))
    return gvar


def executable(
    mod: tvm.IRModule, target: tvm.target.Target, build_kernels: Callable[[tvm.IRModule], tvm.runtime.Module]
) -> relax.VMExecutable:
    """Build a lowered module as ``relax.build`` does, with a function of the caller's to build its kernels.

    Parameters
    ----------
    build_kernels : callable
        Makes a module for the host from all PrimFuncs, as ``tirx.build`` does.
    """
    builder = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, mod))
    library = build_kernels(kernels) if kernels is not None else None
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target, library, [], {}))


def write_library(
    code: relax.VMExecutable | tvm.runtime.Module, path: str, link: Callable[[str, list[str]], None], threads: int
) -> None:
    """Write a library as ``export_library`` does, from LLVM's modules and those of devices.

    Work-around: ``export_library`` generates the machine code of one module after the other, which takes as long as
    making the modules.

    Parameters
    ----------
    link : callable
        Links object files to a library of the given name, as ``fcompile`` of ``export_library`` does.
    """
    root = code if isinstance(code, tvm.runtime.Module) else code.mod
    modules = root._collect_dso_modules()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(threads) as pool:
        objects = [f"{place}/lib{number}.o" for number in range(len(modules))]
        list(pool.map(lambda mod, file: mod.write_to_file(file), modules, objects))
        if root.imports:
            target = modules[0].get_function("_get_target_string")()
            packed = module_api.ModulePackImportsToLLVM(root, False, target, "")
            objects.append(f"{place}/devc.o")
            packed.write_to_file(objects[-1])
        link(path, objects)


def is_texture_access(call: ir.Call) -> bool:
    """Whether a call is ``texture2d_load`` or ``texture2d_store``."""
    return call.op.same_as(TEXTURE_LOAD) or call.op.same_as(TEXTURE_STORE)


def texture_of(access: ir.Call) -> tirx.Var:
    """Return the variable of the texture that is read or written: a parameter, or a buffer declared over one."""
    image = access.args[0]
    return image if isinstance(image, tirx.Var) else image.args[0]


def texture_dtype(access: ir.Call) -> str:
    """Return the element type of the texture that is read or written."""
    return str(access.args[0].ty.element_type.dtype)


def texture_params(kernel: tirx.PrimFunc) -> dict[tirx.Var, tirx.Var]:
    """Return the parameter behind each texture of a kernel, the parameters themselves included."""
    scoped = [p for p in kernel.params if isinstance(p.ty, ir.PointerType) and "texture" in p.ty.storage_scope]
    found = {param: param for param in scoped}

    def declare(decl: tirx.DeclBuffer):
        if decl.data in found:
            found[decl.buffer] = found[decl.data]

    tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, declare), order="pre")
    return found
