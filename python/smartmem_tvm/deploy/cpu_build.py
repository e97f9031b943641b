# SPDX-License-Identifier: Apache-2.0
"""Build the virtual machine's code for a CPU, several LLVM modules in parallel: LLVM itself uses one core."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import tvm
from tvm import relax, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from .._tvm import executable
from ..tune.host import usable_cores
from ..tvm_mends.store_chains import with_stored_chains
from .argument_checks import without_checks
from .gpu_build import parts_of, together


def build_for_cpu(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """Build a module that was lowered to the virtual machine, as ``relax.build`` does.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after `deploy.build.lower`.
    target : tvm.target.Target
        A CPU.
    """
    return executable(mod, target, lambda kernels: build_kernels(kernels, target))


def build_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """Compile scheduled PrimFuncs; the result is a runtime module with some of them that imports the others."""
    lower, finish, _ = tirx.get_tir_pipeline("default")
    bound = tirx.transform.BindTarget(target.with_host(target))(mod)
    host, _ = split_host_device_mods(lower(bound))
    parts = parts_of(with_stored_chains(finish()(without_checks(host))))
    with ThreadPoolExecutor(usable_cores()) as pool:
        return together(list(pool.map(lambda part: codegen_build(part, target), parts)))
