# SPDX-License-Identifier: Apache-2.0
"""Merge groups of a grouped convolution with few channels each: the weights become block-diagonal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ....ir.exchange_constants import Exchange, constant_operands, exchange
from ....ir.graph import append_log
from ....ir.index_map import variables
from ....ir.kernel import Kernel, Stage, parse, shape_of
from ....ir.strength_reduction import Simplifier
from ....ir.walk import collect, loads
from ...core.nest import index
from ...core.rule import is_open, target_of
from ..gemm.product import MatmulProduct
from .matrix import LEAST
from .matrix_tile import MatrixParams, Shape, shortest
from .products import multiplied_in


@module_pass(opt_level=0, name="smartmem.WidenGroups")
class WidenGroups:
    """Let matrix instructions multiply several groups of a convolution at once.

    Before, 32 groups of 4 channels each::

        y[b, o, h, w] += x[b, o // 4 * 4 + c, h + p, w + q] * k[o, c, p, q]             c < 4

    After, 2 groups of 64 channels, where ``k'`` is zero unless ``o`` and ``c`` are of the same original group::

        y[b, o, h, w] += x[b, o // 64 * 64 + c, h + p, w + q] * k'[o, c, p, q]          c < 64

    An instruction takes 16 rows, 8 columns and 32 bytes of terms, and a stage more of each: for a narrow group, most
    of its multiplications would be padding. The cost model of tiles chooses how many groups go together.

    The pass leaves unchanged: groups of one channel; weights that are no constants; factors that are not float16,
    bfloat16 or tf32.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Apply to every open kernel of `mod`."""
        found, log = {}, []
        for gvar, positions in constant_operands(mod).items():
            each = widened(mod[gvar], positions, target_of(mod[gvar], gvar.name_hint)) if is_open(mod[gvar]) else None
            if each is not None:
                found[gvar], groups, together = each
                reason = f"{groups} groups go {together} by {together}, as matrix instructions take less time so"
                log.append({"pass": "WidenGroups", "operator": gvar.name_hint, "action": "widened", "reason": reason})
        return append_log(exchange(mod, found), log) if log else mod


def widened(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> tuple[Exchange, int, int] | None:
    """Return a convolution with fewer groups, its number of groups before, and how many are one now; None if no gain.

    Parameters
    ----------
    func : PrimFunc
        An unscheduled kernel.
    positions : collection of int
        Positions of the parameters that are constants.
    """
    found = multiplied_in(func, target, least=1)
    grouped = _grouped(parse(func), positions) if found is not None else None
    if grouped is None:
        return None
    product, factors = found
    together = _together(grouped, product, MatrixParams.of(target).multiplying(factors.element, False))
    return None if together == 1 else (grouped.widened(together), grouped.groups, together)


@dataclass(frozen=True, eq=False)
class _Grouped:
    """A grouped convolution.

    Attributes
    ----------
    stage : Stage
        Its reduction.
    output, channel : Var
        Iterators of the output channels, and of the input channels of a group.
    group : int
        Output channels of a group.
    weights : tuple
        Position of the constant among the inputs, and its dimensions that `output` and `channel` index.
    """

    kernel: Kernel
    stage: Stage
    output: tirx.Var
    channel: tirx.Var
    group: int
    weights: tuple[int, int, int]

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.stage.extents[self.output] // self.group

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.stage.extents[self.channel]

    def widened(self, together: int) -> Exchange:
        """Return the convolution with `together` groups merged into one."""
        position, out_dim, channel_dim = self.weights
        old, wide = self.kernel.inputs[position], together * self.channels
        shape = [wide if dim == channel_dim else size for dim, size in enumerate(shape_of(old))]
        new = tirx.decl_buffer(list(map(index, shape)), old.dtype, old.name)
        first = tirx.floordiv(self.output, index(together * self.group)) * index(wide)

        def load(each):
            if each.source.same_as(old):
                return tirx.BufferLoad(new, each.indices)
            places = [first + self.channel if self._chooses(at) else at for at in each.indices]
            return tirx.BufferLoad(each.source, places)

        body = tvm_ffi.structural_map(self.stage.body, (ir.TensorLoad, load))
        stage = replace(self.stage.with_extents({self.channel: wide}), body=body)
        stages = tuple(stage if each is self.stage else each for each in self.kernel.stages)
        inputs = tuple(new if i == position else each for i, each in enumerate(self.kernel.inputs))
        form = partial(_block_diagonal, together=together, group=self.group, dims=(out_dim, channel_dim))
        return Exchange(Kernel(inputs, self.kernel.outputs, stages), {position: form})

    def _chooses(self, at) -> bool:
        return {self.output, self.channel} <= set(variables(at))


def _grouped(kernel: Kernel, positions: Collection[int]) -> _Grouped | None:
    stage = next(each for each in kernel.stages if each.reduction)
    constants = {position: kernel.inputs[position] for position in positions}
    for output, channel, group in _choices(stage):
        read = [load for load in stage.loads if channel in variables(list(load.indices))]
        weights = [(n, load) for load in read for n, each in constants.items() if load.source.same_as(each)]
        found = _Grouped(kernel, stage, output, channel, group, ())
        others = [load for load in read if not any(load.same_as(each) for _, each in weights)]
        if len(weights) != 1 or not all(any(map(found._chooses, load.indices)) for load in others):
            continue
        position, load = weights[0]
        dims = [[dim for dim, at in enumerate(load.indices) if at.same_as(var)] for var in (output, channel)]
        if all(len(each) == 1 for each in dims) and len(kernel.readers(load.source)) == 1:
            return replace(found, weights=(position, dims[0][0], dims[1][0]))
    return None


def _choices(stage: Stage) -> Iterator[tuple]:
    """Yield (output, channel, outputs of a group) of each index ``output // group * channels + channel``."""
    simplifier = Simplifier(stage.extents)
    for at in (at for load in stage.loads for at in load.indices):
        for div in collect(at, tirx.FloorDiv):
            channel = next((var for var in stage.reduction if var in variables(at)), None)
            if channel is None or not isinstance(div.b, tirx.IntImm) or div.a not in stage.spatial:
                continue
            count = stage.extents[channel]
            rest = simplifier.index(at - (div * index(count) + channel))
            if count > 1 and isinstance(rest, tirx.IntImm) and int(rest) == 0:
                yield div.a, channel, int(div.b)


def _together(grouped: _Grouped, product: MatmulProduct, params: MatrixParams) -> int:
    """Return how many groups go together for the least estimated time."""
    weights = grouped.kernel.inputs[grouped.weights[0]]
    across = any(load.source.same_as(weights) for load in loads(product.contraction.right))

    def shape(together: int) -> Shape:
        rows, columns = product.rows, product.columns
        wide = (rows, columns * together) if across else (rows * together, columns)
        return Shape(product.batch // together, *wide, product.depth * together)

    able = [n for n in range(1, grouped.groups + 1) if grouped.groups % n == 0]
    able = [n for n in able if min(shape(n).rows, shape(n).columns) >= LEAST]
    return min(able, key=lambda n: shortest(shape(n), params), default=1)


def _block_diagonal(array: np.ndarray, together: int, group: int, dims: tuple[int, int]) -> np.ndarray:
    """Return weights (output, channel, ...) in which each output has zeros for the channels of other groups."""
    given = np.moveaxis(array, dims, (0, 1))
    outputs, channels = given.shape[:2]
    made = np.zeros((outputs, together * channels, *given.shape[2:]), array.dtype)
    for first in range(0, outputs, group):
        at = first // group % together * channels
        made[first : first + group, at : at + channels] = given[first : first + group]
    return np.moveaxis(made, (0, 1), dims)
