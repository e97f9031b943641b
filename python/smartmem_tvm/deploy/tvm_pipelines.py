# SPDX-License-Identifier: Apache-2.0
"""TVM's own pipelines for GPUs, for comparisons: the default one, and the one with textures, mended."""

from __future__ import annotations

import time

import tvm
from tvm import relax
from tvm.relax.backend import adreno, gpu_generic
from tvm.s_tir import dlight

from ..errors import UserError
from ..target import has_textures
from ..tvm_mends.texture_pipeline import OwnNodes, SplitByScope, convolve_narrow_groups
from .build import generate
from .compiled import Compiled
from .weights import lift_weights

PIPELINES = ("default", "textures", "textures-matmul")
"""TVM's pipeline for any GPU, in buffers; its Adreno pipeline, mended; and that with TVM's generic GPU matmul rule."""


def schedule_tvm(mod: tvm.IRModule, target: tvm.target.Target, pipeline: str = "default") -> tvm.IRModule:
    """Return a network as ``call_tir`` of kernels scheduled by TVM.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module of operators.
    target : tvm.target.Target
        A GPU; for the pipelines with textures, of kind opencl with ``texture`` among its keys.
    pipeline : str
        One of `PIPELINES`.

    Raises
    ------
    UserError
        If the pipeline is unknown, or needs textures and `target` has none.
    """
    with target:
        before, schedules = _halves(target, pipeline)
        return tvm.transform.Sequential([*before, *schedules])(mod)


def compile_tvm(mod: tvm.IRModule, target: tvm.target.Target, pipeline: str = "default") -> Compiled:
    """Compile with one of TVM's pipelines; parameters as for `schedule_tvm`, but the target must have a host."""
    start = time.perf_counter()
    with target:
        before, schedules = _halves(target, pipeline)
        graph = tvm.transform.Sequential(before)(mod)
        passes = gpu_generic.dataflow_lower_passes(target) + gpu_generic.finalize_passes(target)
        lowered = tvm.transform.Sequential([*schedules, *passes])(graph.clone())  # TVM's schedules change it
    middle = time.perf_counter()
    executable = generate(lowered, target)
    seconds = {"passes": middle - start, "codegen": time.perf_counter() - middle}
    return Compiled(executable, lift_weights(graph)[0], target, seconds=seconds)


def network_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    """Return TVM's passes from operators to scheduled kernels for an Adreno target, with textures if it has them.

    Call this function, and run the passes, with `target` as the current target.
    """
    if has_textures(target):
        return adreno.library_dispatch_passes(target) + _passes(target, "textures")
    return [
        *adreno.library_dispatch_passes(target),
        *gpu_generic.library_dispatch_passes(target),
        *adreno.legalize_passes(target),
    ]


def _halves(target: tvm.target.Target, pipeline: str) -> tuple[list, list]:
    """Split a pipeline before its first scheduling pass; analyses can read the kernels at that point."""
    passes = _passes(target, pipeline)
    first = next(at for at, each in enumerate(passes) if each.info.name == "ApplyDefaultSchedule")
    return passes[:first], passes[first:]


def _passes(target: tvm.target.Target, pipeline: str) -> list[tvm.transform.Pass]:
    if pipeline not in PIPELINES:
        raise UserError(f"TVM's pipeline '{pipeline}' is unknown; use one of {', '.join(PIPELINES)}.")
    if pipeline == "default":
        return gpu_generic.library_dispatch_passes(target) + gpu_generic.legalize_passes(target)
    if not has_textures(target) or "adreno" not in target.keys:
        raise UserError(f"TVM's pipeline '{pipeline}' is for Adreno's textures: use a target as adreno-740.")
    passes = adreno.legalize_passes(target)
    _insert(passes, "LegalizeOps", relax.transform.LegalizeOps({"relax.nn.conv2d": convolve_narrow_groups}))
    _insert(passes, "SpecializePrimFuncBasedOnCallSite", SplitByScope())
    # These come before the rules that give each thread block one sum, or each thread one number of a texel. TVM has the
    # first of them, but does not use it.
    rules = [dlight.adreno.Fallback(), *([dlight.gpu.Matmul()] if pipeline == "textures-matmul" else [])]
    _insert(passes, "ApplyDefaultSchedule", dlight.ApplyDefaultSchedule(*rules))
    return [OwnNodes(), *gpu_generic.library_dispatch_passes(target), *passes]


def _insert(passes: list[tvm.transform.Pass], name: str, new: tvm.transform.Pass) -> None:
    """Insert `new` before the last pass called `name`."""
    passes.insert(max(at for at, each in enumerate(passes) if each.info.name == name), new)
