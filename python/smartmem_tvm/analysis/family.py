# SPDX-License-Identifier: Apache-2.0
"""The family of a kernel, determined from its loop program; comparisons of kernels are grouped by family."""

from __future__ import annotations

from tvm import ir, tirx

from ..ir.compose import simplify, tidy
from ..ir.index_map import variables
from ..ir.kernel import Kernel, Opaque, Stage, parse
from ..ir.movement import movement
from ..ir.walk import collect, loads

ATTENTION, MATMUL, BATCHED = "attention", "matmul", "batched matmul"
CONVOLUTION, GROUPED, DEPTHWISE = "convolution", "grouped convolution", "depthwise convolution"
NORM, SOFTMAX, POOLING, REDUCTION = "norm", "softmax", "pooling", "reduction"
GATHER, LAYOUT, ELEMENTWISE, OTHER = "gather", "layout", "element-wise", "other"
FAMILIES = (
    *(MATMUL, BATCHED, ATTENTION),
    *(CONVOLUTION, GROUPED, DEPTHWISE),
    *(NORM, SOFTMAX, POOLING, REDUCTION, ELEMENTWISE, GATHER, LAYOUT, OTHER),
)
"""All families, in the order of tables."""


def family_of(func: tirx.PrimFunc) -> str:
    """Return the family of an unscheduled kernel, including the operators fused into it.

    A sum of products decides before any other reduction, and a reduction before element-wise stages: the layout of the
    operands matters most for the heaviest part. A convolution without a window (1x1) is a matmul.

    Returns
    -------
    str
        One of `FAMILIES`; ``other`` for functions without a functional form.
    """
    try:
        kernel = parse(func)
    except Opaque:
        return OTHER
    sums = [stage for stage in kernel.stages if stage.reduction]
    products = [stage for stage in sums if _factors(stage) is not None]
    if len(products) > 1:
        return ATTENTION
    if products:
        return _product_family(products[0])
    return _reduction_family(kernel, sums) if sums else _pointwise_family(kernel)


def _product_family(stage: Stage) -> str:
    left, right = (_variables(stage, loads(side)) for side in _factors(stage))
    shared = left & right & set(stage.spatial)
    sliding = _sliding(stage, shared)
    if not sliding:
        return BATCHED if shared else MATMUL
    channels = (left | right) & set(stage.reduction) - sliding
    return CONVOLUTION if not shared else GROUPED if channels else DEPTHWISE


def _reduction_family(kernel: Kernel, sums: list[Stage]) -> str:
    calls = [call for stage in kernel.stages for call in collect(stage.body, ir.Call)]
    called = {call.op.name for call in calls if isinstance(call.op, ir.Op)}
    if any(isinstance(_combined(stage), tirx.Max) for stage in sums) and any(name.endswith(".exp") for name in called):
        return SOFTMAX
    if any(name.endswith("sqrt") for name in called):
        return NORM
    return POOLING if any(_sliding(stage, set()) for stage in sums) else REDUCTION


def _pointwise_family(kernel: Kernel) -> str:
    picked = (index for stage in kernel.stages for load in stage.loads for index in load.indices)
    if any(map(loads, picked)):
        return GATHER
    whole = tidy(simplify(kernel)) if len(kernel.outputs) == 1 else kernel
    return LAYOUT if movement(whole) is not None else ELEMENTWISE


def _factors(stage: Stage) -> tuple | None:
    """Return the factors of the products that a stage adds up, if their iterators differ, which excludes ``x * x``."""
    value = _combined(stage)
    if not isinstance(value, tirx.Add):
        return None
    terms = [side for side in (value.a, value.b) if not _is_accumulator(stage, side)]
    if len(terms) != 1 or not isinstance(terms[0], tirx.Mul):
        return None
    sides = terms[0].a, terms[0].b
    read = [_variables(stage, loads(side)) for side in sides]
    return sides if all(read) and read[0] != read[1] else None


def _combined(stage: Stage):
    return stage.body.value if isinstance(stage.body, tirx.BufferStore) else None


def _is_accumulator(stage: Stage, expr) -> bool:
    return isinstance(expr, ir.TensorLoad) and any(expr.source.same_as(output) for output in stage.outputs)


def _sliding(stage: Stage, shared: set) -> set:
    """Return the reduction iterators that an index adds to an iterator of the result: the places in a window."""
    found: set = set()
    for load in stage.loads:
        for index in load.indices:
            used = _variables(stage, [index])
            if used & set(stage.spatial) - shared:
                found |= used & set(stage.reduction)
    return found


def _variables(stage: Stage, exprs) -> set:
    """Return the iterators of a stage, with an extent above 1, that occur in some expressions."""
    found = {var for expr in exprs for var in variables(expr)}
    return {var for var in (*stage.spatial, *stage.reduction) if var in found and stage.extents[var] > 1}
