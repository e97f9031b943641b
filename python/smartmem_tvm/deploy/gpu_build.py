# SPDX-License-Identifier: Apache-2.0
"""Build the virtual machine's code for a GPU: kernels are lowered, and compiled for CUDA, in parallel.

Unrolled kernels are long, and both TVM's lowering and NVIDIA's compiler use one core for a kernel.
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
from ..errors import UserError
from ..ir.walk import stores
from ..target import is_cuda
from .argument_checks import without_checks
from .cuda_compiler import compiling
from .early_launch import launched_early

# Modules of one network. The number does not depend on this machine's cores, so that a library has the same bytes
# everywhere.
PARTS = 8
_KERNELS = 4  # least kernels of a module: each module costs some milliseconds


def build_for_gpu(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: str,
    observe: Callable[[tvm.IRModule], None] = lambda _: None,
) -> relax.VMExecutable:
    """Build a module that was lowered to the virtual machine, as ``relax.build`` does.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after `deploy.build.lower`.
    target : tvm.target.Target
        A GPU, with a host.
    pipeline : str
        The name of TVM's pipeline of passes for kernels.
    observe : callable
        Called with each module of kernels before code generation.

    Raises
    ------
    UserError
        If TVM has no code generator for the target, or the target is CUDA and there is no compiler for it, see
        `cuda_compiler.compiler`.
    """
    kind = target.kind.name
    if tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is None:
        raise UserError(
            f"This TVM has no code generator for '{kind}', so that kernels end as TIR: print it with `smartmem opt "
            f"MODEL --target {kind} --pass legalize,fuse-operators,schedule-kernels`, or use a TVM that was built "
            "with one."
        )
    return executable(mod, target, lambda kernels: build_kernels(kernels, target, pipeline, observe))


def build_kernels(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: str = "default",
    observe: Callable[[tvm.IRModule], None] = lambda _: None,
) -> tvm.runtime.Module:
    """Compile scheduled PrimFuncs; the result is a module of the host's functions that imports modules of kernels."""
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
                for caller in callers:  # a module finds the kernels that it launches only among its own imports
                    caller.import_module(each.result())
    return together(callers)


def _lower(mod: tvm.IRModule, target: tvm.target.Target, pipeline: str) -> tuple[tvm.IRModule, list[tvm.IRModule]]:
    """Return the host's functions, and the kernels, ready for the code generators."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline(pipeline)
    with target:  # each thread has its own current target
        host, kernels = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
        made = [finish_device()(launched_early(each, target)) for each in kernels.values()]
        return finish_host()(without_checks(host)), made


def keeps_binaries(target: tvm.target.Target) -> bool:
    """Whether TVM compiles kernels when it creates a module, so that `compiling` caches the binaries.

    If not, a single module is faster to load.
    """
    creates = tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True)
    return is_cuda(target) and creates is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split(mod: tvm.IRModule, parts: int) -> list[tvm.IRModule]:
    """Split a module into at most `parts` modules of about equal size, none of them empty."""
    functions = mod.functions_items()
    if any("global_symbol" not in (func.attrs or {}) for _, func in functions):
        return [mod]  # other functions call those without a global symbol
    sizes = {name: _size(func) for name, func in functions}
    shares: list[tuple[int, dict]] = [(0, {}) for _ in range(min(parts, len(functions)))]
    # The largest function first, each to the smallest share.
    for name, func in sorted(functions, key=lambda item: (-sizes[item[0]], item[0].name_hint)):
        least = min(range(len(shares)), key=lambda share: shares[share][0])
        total, held = shares[least]
        shares[least] = total + sizes[name], {**held, name: func}
    return [tvm.IRModule(held, attrs=mod.attrs) for _, held in shares]


def parts_of(mod: tvm.IRModule) -> list[tvm.IRModule]:
    """Split one network's code for a CPU into modules, to compile them in parallel: LLVM itself uses one core."""
    return split(mod, max(1, min(PARTS, len(mod.functions) // _KERNELS)))


def together(libraries: Sequence[tvm.runtime.Module]) -> tvm.runtime.Module:
    """Return the first of several modules, after it has imported the others."""
    for each in libraries[1:]:
        libraries[0].import_module(each)
    return libraries[0]


def join(mods: Iterable[tvm.IRModule]) -> tvm.IRModule:
    """Return one module with all functions."""
    mods = list(mods)
    return tvm.IRModule({name: func for mod in mods for name, func in mod.functions_items()}, attrs=mods[0].attrs)


def _size(func: tirx.PrimFunc) -> int:
    """Return the number of stores, plus one: the time of passes and compilers is about proportional."""
    return 1 + len(stores(func.body))
