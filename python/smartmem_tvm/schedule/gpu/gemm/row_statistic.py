# SPDX-License-Identifier: Apache-2.0
"""A sum over each row of a left operand, which thread blocks of a product compute by themselves.

    sum[i] += f(left row i at k)                   each thread some k, added by shuffles, and then in shared memory
    out[i, j] += g(x[i, k], sum[i]) * w[j, k]

Each thread block of a product of few rows reads these rows anyway: a norm in front of a product needs no launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from ....ir.half import FLOAT
from ....ir.kernel import Kernel, Stage, substitute
from ....ir.walk import loads
from ...core.expressions import replace_loads
from ...core.fold_policies import folded, in_proportion
from ...core.nest import UNROLL, Scope, allocate, block, index, store
from ...core.reduction import combiner_of
from ..guards import guard
from ..launch import registers, shared, when
from ..machine import WARP
from .simt import as_vector

_EVERYONE = 0xFFFFFFFF  # mask of all lanes of a warp, by definition of CUDA


@dataclass(frozen=True, eq=False)
class Statistic:
    """A sum over each row.

    Attributes
    ----------
    stage : Stage
    rows, depth : int
        Sums, and terms of each.
    """

    stage: Stage
    rows: int
    depth: int

    @property
    def buffer(self):
        """The tensor of the sums in the kernel, which does not exist."""
        return self.stage.body.buffer


def without_statistic(kernel: Kernel) -> tuple[Statistic | None, Kernel]:
    """Return the sum over each row in front of a kernel's products, and the kernel that reads it as an input.

    None and the kernel as it is, if its first stage is no such sum.
    """
    first = kernel.stages[0]
    if not first.reduction or sum(bool(stage.reduction) for stage in kernel.stages) < 2 or len(first.reduction) > 1:
        return None, kernel
    combined, whole = combiner_of(first), folded(kernel, in_proportion)
    if combined is None or not isinstance(first.body.value, tirx.Add) or str(first.body.buffer.ty.dtype) != FLOAT:
        return None, kernel
    first, *others = whole.stages
    readers = [stage for stage in others if stage.reads(first.body.buffer)]
    if not readers or not all(stage.reduction for stage in readers):
        return None, kernel
    rows = 1
    for var in first.spatial:
        rows *= first.extents[var]
    sums = Statistic(first, rows, first.extents[first.reduction[0]])
    return sums, Kernel((*whole.inputs, sums.buffer), whole.outputs, tuple(others))


class RowStatistic:
    """The statements that add up, and the sums in shared memory.

    Parameters
    ----------
    tile : object
        Has the `threads` of a thread block, whole warps.
    width : int
        Terms that a thread loads at once.
    """

    def __init__(self, scope: Scope, statistic: Statistic, threads: int, width: int):
        self.scope, self.statistic, self.threads = scope, statistic, threads
        self.width = width if statistic.depth % width == 0 else 1
        self.warps = threads // WARP
        self.own = registers(statistic.rows, FLOAT, "own_sums")
        self.of_warps = shared(statistic.rows * self.warps, FLOAT, "row_sums")

    @property
    def buffers(self) -> list:
        """Registers and shared memory."""
        return [self.own, self.of_warps]

    def add_up(self, thread) -> tirx.Stmt:
        """Let all threads add up; other threads see the sums after a barrier."""
        rows = range(self.statistic.rows)
        clear = [store(self.own, tirx.const(0.0, FLOAT), i) for i in rows]
        lane = self.scope.analyzer.simplify(tirx.floormod(thread, index(WARP)))
        warp = self.scope.analyzer.simplify(tirx.floordiv(thread, index(WARP)))
        leave = [store(self.of_warps, self.own[index(i)], index(i * self.warps) + warp) for i in rows]
        return block(
            *clear,
            *(self._own(i, thread) for i in rows),
            *self._shuffled(),
            when(lane.equal(index(0)), block(*leave)),
        )

    def _own(self, row: int, thread) -> tirx.Stmt:
        stage, width, simplify = self.statistic.stage, self.width, self.scope.analyzer.simplify
        _, term = combiner_of(stage)
        vectors, left, point = self.statistic.depth // width, index(row), {}
        for var in reversed(stage.spatial):
            extent = index(stage.extents[var])
            point[var] = simplify(tirx.floormod(left, extent))
            left = simplify(tirx.floordiv(left, extent))
        terms = registers(width, FLOAT, "terms")

        def each(c):
            number = simplify(c * index(self.threads) + thread)

            def one(v):
                at = {**point, stage.reduction[0]: number * index(width) + v}
                return store(terms, substitute(term, at).astype(FLOAT), v)

            adds = [store(self.own, self.own[index(row)] + terms[index(v)], row) for v in range(width)]
            body = block(as_vector(self.scope, width, one), *adds)
            return guard([] if vectors % self.threads == 0 else [number < index(vectors)], body)

        return allocate([terms], self.scope.loop(-(-vectors // self.threads), each, "c", UNROLL))

    def _shuffled(self) -> list[tirx.Stmt]:
        made, far = [], WARP // 2
        mask, width = tirx.const(_EVERYONE, "uint32"), tirx.const(WARP, "int32")
        while far:
            for i in range(self.statistic.rows):
                lanes = (tirx.const(far, "int32"), width)
                other = tirx.call_intrin(FLOAT, "tirx.cuda.__shfl_xor_sync", mask, self.own[index(i)], *lanes)
                made.append(store(self.own, self.own[index(i)] + other, i))
            far //= 2
        return made

    def known(self, value):
        """Return an expression with the sums of shared memory in place of those of the kernel."""
        if not any(load.source.same_as(self.statistic.buffer) for load in loads(value)):
            return value
        return replace_loads(
            value, lambda load: self._sum(load) if load.source.same_as(self.statistic.buffer) else None
        )

    def _sum(self, load):
        row = index(0)
        for at, extent in zip(load.indices, load.source.shape, strict=True):
            row = row * index(int(extent)) + at
        first = self.scope.analyzer.simplify(row) * index(self.warps)
        total = self.of_warps[first]
        for w in range(1, self.warps):
            total = total + self.of_warps[first + index(w)]
        return total
