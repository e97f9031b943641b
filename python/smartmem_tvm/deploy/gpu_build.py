# SPDX-License-Identifier: Apache-2.0
"""Code of the virtual machine for a GPU: its kernels are lowered, and for CUDA compiled, side by side.

Unrolled kernels are long, TVM's lowering takes each of them on one core, and so does NVIDIA's compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import tvm
from tvm import relax, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from .._tvm import executable
from ..ir.walk import stores
from ..target import is_cuda
from .argument_checks import without_checks
from .cuda_compiler import compiling

# Modules of one network. The number is no matter of this machine's cores: a library has the same bytes everywhere.
PARTS = 8
_KERNELS = 4  # of a module, or there are fewer of them: each takes some milliseconds of its own


def build_for_gpu(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: str,
    observe: Callable[[tvm.IRModule], None] = lambda _: None,
) -> relax.VMExecutable:
    """Code for a module that was lowered to the virtual machine, as ``relax.build`` makes it.

    Parameters
    ----------
    mod : tvm.IRModule
        After `deploy.build.lower`.
    target : tvm.target.Target
        A GPU, with a host.
    pipeline : str
        The name of TVM's pipeline of passes for kernels.
    observe : callable
        Is shown each module of kernels as the code generator gets it.

    Raises
    ------
    UserError
        If the target is CUDA and there is no compiler for it, see `cuda_compiler.compiler`.
    """
    return executable(mod, target, lambda kernels: build_kernels(kernels, target, pipeline, observe))


def build_kernels(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: str = "default",
    observe: Callable[[tvm.IRModule], None] = lambda _: None,
) -> tvm.runtime.Module:
    """Compile scheduled PrimFuncs: a module of the host's functions that imports modules of kernels."""
    cores = _cores()
    with ThreadPoolExecutor(cores) as pool:
        lowered = list(pool.map(lambda part: _lower(part, target, pipeline), split(mod, cores)))
        host, kernels = join(part for part, _ in lowered), [each for _, part in lowered for each in part]
        for each in kernels:
            observe(each)
        now = keeps_binaries(target)
        if kernels and not now:
            kernels = [join(kernels)]
        with compiling(target) if now else nullcontext():
            compiled = [pool.submit(codegen_build, each, target) for each in kernels]
            callers = list(pool.map(lambda part: codegen_build(part, target.host), parts_of(host)))
            for each in compiled:
                for caller in callers:  # each looks for the kernels that it launches in its own imports
                    caller.import_module(each.result())
    return together(callers)


def _lower(mod: tvm.IRModule, target: tvm.target.Target, pipeline: str) -> tuple[tvm.IRModule, list[tvm.IRModule]]:
    """The host's functions, and the kernels, ready for the code generators."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline(pipeline)
    with target:  # the current target is another one in every thread
        host, kernels = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
        return finish_host()(without_checks(host)), [finish_device()(each) for each in kernels.values()]


def keeps_binaries(target: tvm.target.Target) -> bool:
    """Whether TVM compiles kernels, and `compiling` keeps them, as it makes a module of them.

    Where it does not, one module is quicker to load.
    """
    creates = tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True)
    return is_cuda(target) and creates is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split(mod: tvm.IRModule, parts: int) -> list[tvm.IRModule]:
    """At most `parts` modules of about equal size that together hold the functions of `mod`, none of them empty."""
    functions = mod.functions_items()
    if any("global_symbol" not in (func.attrs or {}) for _, func in functions):
        return [mod]  # something that the others call
    sizes = {name: _size(func) for name, func in functions}
    shares: list[tuple[int, dict]] = [(0, {}) for _ in range(min(parts, len(functions)))]
    # The largest first, each to whom has least.
    for name, func in sorted(functions, key=lambda item: (-sizes[item[0]], item[0].name_hint)):
        least = min(range(len(shares)), key=lambda share: shares[share][0])
        total, held = shares[least]
        shares[least] = total + sizes[name], {**held, name: func}
    return [tvm.IRModule(held, attrs=mod.attrs) for _, held in shares]


def parts_of(mod: tvm.IRModule) -> list[tvm.IRModule]:
    """Modules of one network's code for a CPU: LLVM works on one core, so that they are made side by side."""
    return split(mod, max(1, min(PARTS, len(mod.functions) // _KERNELS)))


def together(libraries: Sequence[tvm.runtime.Module]) -> tvm.runtime.Module:
    """The first of some modules, which imports the others."""
    for each in libraries[1:]:
        libraries[0].import_module(each)
    return libraries[0]


def join(mods: Iterable[tvm.IRModule]) -> tvm.IRModule:
    """One module of all functions."""
    mods = list(mods)
    return tvm.IRModule({name: func for mod in mods for name, func in mod.functions_items()}, attrs=mods[0].attrs)


def _size(func: tirx.PrimFunc) -> int:
    """Statements that write something: passes and compilers take about as long."""
    return 1 + len(stores(func.body))
