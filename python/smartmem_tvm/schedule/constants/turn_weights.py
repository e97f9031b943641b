# SPDX-License-Identifier: Apache-2.0
"""TurnWeights: weights of windows with their channels innermost, and matrices with their depth innermost.

Adjacent threads have adjacent channels; products of few rows read a matrix faster in long runs.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
from tvm import IRModule, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ...ir.exchange_constants import Exchange
from ...ir.kernel import parse
from ...ir.several_sizes import size_functions
from ...ir.storage import reordered
from ...ir.walk import loads
from ..choose import taken_before
from ..core.expressions import Walk, memory_order
from ..core.reduction import reduction_of
from ..core.rule import exchange_open
from ..gpu.matmul.few_rows import GpuFewRows, worth_turning
from ..gpu.window.window import WindowSlide, nearest_read, sliding_axis


@module_pass(opt_level=0, name="smartmem.TurnWeights")
class TurnWeights:
    """Let the threads of a warp read neighbours of a depthwise convolution's weights.

    Before, with the channels of ``x`` innermost in memory::

        y[b, c, h, w] += x[b, h + p, w + q, c] * k[c, 0, p, q]         neighbouring threads: neighbouring c

    After, with the constant ``k`` stored so::

        y[b, c, h, w] += x[b, h + p, w + q, c] * k[0, p, q, c]

    And a product of few rows reads a constant matrix along the depth, if that is predicted to take a tenth less::

        y[j] += x[k] * w[k, j]     ->     y[j] += x[k] * w[j, k]

    Of models of several sizes these stay, as other sizes read them too. Refuses (leaves as they are) kernels that other
    rules than `WindowSlide` and `GpuFewRows` take, and weights that are not constant, are read twice, or do not have
    the channels as one of their dimensions.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        found = exchange_open(mod, turned)
        return found if size_functions(mod) else exchange_open(found, turned_matrix)


def turned_matrix(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> Exchange | None:
    """Return a product of few rows with its matrices turned; None if nothing changes. Parameters as of `turned`."""
    wanted = GpuFewRows().ask(func, target, worth_turning) or []
    if not wanted or taken_before(GpuFewRows, func, target):
        return None
    kernel = parse(func)
    inputs = kernel.inputs
    numbers = [n for n in positions if any(inputs[n].same_as(each) for each in wanted)]
    if len(numbers) != len({hash(each) for each in wanted}):
        return None
    for number in numbers:
        kernel, _ = reordered(kernel, inputs[number], (1, 0))
    return Exchange(kernel, dict.fromkeys(numbers, np.transpose))


def turned(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> Exchange | None:
    """Return a kernel of a window with the channels of its weights innermost; None if nothing changes.

    Parameters
    ----------
    func : PrimFunc
        Unscheduled.
    positions : collection of int
        Positions of the parameters that are constants.
    """
    reduction = WindowSlide().ask(func, target, lambda kernel, _: reduction_of(kernel))
    if reduction is not None and sliding_axis(reduction) is not None:
        order = memory_order(reduction.spatial, reduction.extents, reduction.output, reduction.indices)
        near = nearest_read(reduction, order, sliding_axis(reduction))
        if near is None:
            return None
        kernel, walk = parse(func), Walk(reduction.extents)
        for number in positions:
            read = [load for load in loads(reduction.term) if load.source.same_as(kernel.inputs[number])]
            dims = [dim for load in read for dim, at in enumerate(load.indices) if at.same_as(near)]
            if len(read) != 1 or len(dims) != 1 or walk.load_stride(read[0], near) == 1:
                continue
            if taken_before(WindowSlide, func, target):
                return None
            stored = (*(dim for dim in range(len(read[0].indices)) if dim != dims[0]), dims[0])
            moved, _ = reordered(kernel, kernel.inputs[number], stored)
            return Exchange(moved, {number: partial(np.transpose, axes=stored)})
    return None
