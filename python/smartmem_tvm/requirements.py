# SPDX-License-Identifier: Apache-2.0
"""Checks of a target and of options before a module is compiled; each refusal is one sentence."""

from __future__ import annotations

import tvm

from .cpu_features import require_tiles
from .errors import UserError
from .ir.codes import WEIGHTS, Rounding
from .ir.half import FLOAT
from .tables.precisions import PRECISIONS
from .target import has_half_arithmetic, has_half_storage, is_cpu, is_cuda, is_gpu, model_of

_OF_CUDA = ("bfloat16", "tf32")


def require_schedules(target: tvm.target.Target | None) -> None:
    """Refuse targets without schedule rules.

    Raises
    ------
    UserError
        For anything but a CPU or a GPU.
    """
    if target is not None and not is_cpu(target) and not is_gpu(target):
        raise UserError(
            f"target kind '{target.kind.name}' has no schedules in smartmem_tvm: compile for a CPU (llvm) or a GPU "
            f"(opencl, cuda), or use the passes of smartmem_tvm.transform in a pipeline with schedules of your own."
        )


def require_precision(target: tvm.target.Target | None, precision: str) -> None:
    """Refuse precisions that a target does not have.

    Raises
    ------
    UserError
        If there is no such precision, the target's row in `tables.targets` has no halves in memory, or the precision is
        one of CUDA and the target is not, nor, for bfloat16, a CPU that multiplies such numbers. CUDA without such
        instructions computes in float32, and the log says so.
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision '{precision}' does not exist: use one of {', '.join(PRECISIONS)}.")
    if precision == FLOAT:
        return
    if precision == "bfloat16" and (target is None or is_cpu(target)):
        require_tiles(target)
        return
    name = "llvm" if target is None else model_of(target) or target.kind.name
    if precision in _OF_CUDA:
        if target is None or not is_cuda(target):
            raise UserError(
                f"precision '{precision}' is made of NVIDIA's matrix instructions, which '{name}' does not have: "
                f"compile for cuda, or in half-storage or {FLOAT}."
            )
        return
    if target is None or not has_half_storage(target):
        raise UserError(
            f"precision '{precision}' needs a target that stores half numbers, which '{name}' does not here: "
            f"compile for a GPU (opencl, cuda, adreno-740), or in {FLOAT}."
        )
    if precision == "half" and not has_half_arithmetic(target):
        raise UserError(
            f"precision 'half' needs a target that computes in half, which '{name}' is not known to do: "
            f"name a GPU that does (adreno-740, mali-g76), or use half-storage."
        )


def require_weights(weights: str) -> None:
    """Refuse roundings of weights that are not known.

    Raises
    ------
    UserError
        If `weights` is not known.
    """
    if weights not in WEIGHTS:
        Rounding.parse(weights)
