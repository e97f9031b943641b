# SPDX-License-Identifier: Apache-2.0
"""Split a long reduction to few results in two: partial results by many thread blocks, then their total.

s += x[i, j]   ->   part[i] += x[i, j];  s += part[i]

One thread block would leave the rest of the device idle.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm import ir, tirx

from ....ir.kernel import REDUCE, SPATIAL, Kernel, Stage, substitute
from ...core.expressions import largest_divisor
from ...core.nest import fresh, index
from ...core.reduction import combiner_of

# Terms from which on two launches for a reduction cost less than the wait for one thread block: measured on an H100,
# where pieces pay beyond 31,360 (2026-11-25, `python benchmarks/long_rows.py -o benchmarks/long_rows.json`).
LONG = 1 << 15
# Further terms per row of a normalisation, whose pieces are read from memory three times: fitted to the same times.
_FOR_EACH_ROW = 1 << 10
_FEWEST_PARTS = 8  # parts of the terms of a sum, at least. Chosen: fewer are not worth a second launch


def split_reduction(kernel: Kernel, busy_blocks: int) -> tuple[Kernel, Kernel] | None:
    """Return two kernels that together compute `kernel`, or None if a single one keeps the device as busy.

    The output of the first kernel, the partial results, is an input of the second one.
    """
    stage = kernel.stages[0]
    if sum(bool(s.reduction) for s in kernel.stages) != 1 or not leaves_idle(stage, busy_blocks, LONG):
        return None
    var = max(stage.reduction, key=lambda v: largest_divisor(stage.extents[v], 2 * busy_blocks))
    parts = largest_divisor(stage.extents[var], 2 * busy_blocks)
    if parts < _FEWEST_PARTS:
        return None
    first, second = _partial(stage, var, parts)
    rest = Kernel((*kernel.inputs, first.outputs[0]), kernel.outputs, (second, *kernel.stages[1:]))
    return Kernel(kernel.inputs, first.outputs, (first,)), rest


def leaves_idle(stage: Stage, busy_blocks: int, terms: int) -> bool:
    """Whether a stage reduces at least `terms` terms to each of so few results that most of a device would idle."""
    if not stage.reduction or combiner_of(stage) is None:
        return False
    results = prod(stage.extents[v] for v in stage.spatial)
    return prod(stage.extents[v] for v in stage.reduction) >= terms and 2 * results <= busy_blocks


def pays_in_pieces(stages: list[Stage], busy_blocks: int) -> bool:
    """Whether a launch for each statistic of a few long rows takes less time than a thread block for each row.

    Measured on an H100 for float16 normalisations: three launches take 9 us; a single one takes 8.9 us for 1 row of
    31,360 terms, and 15.6 us for 32 rows of 62,720 terms, which pieces compute in 14.4 us.
    """
    rows = [prod(stage.extents[v] for v in stage.spatial) for stage in stages]
    return all(leaves_idle(s, busy_blocks, LONG + _FOR_EACH_ROW * n) for s, n in zip(stages, rows, strict=True))


def _partial(stage: Stage, var, parts: int) -> tuple[Stage, Stage]:
    length, outer, inner = stage.extents[var] // parts, fresh("part"), fresh("within")
    combine, term = combiner_of(stage)
    shape = [*(index(stage.extents[v]) for v in stage.spatial), index(parts)]
    buffer = tirx.decl_buffer(shape, stage.body.buffer.ty.dtype, "partial", layout=None)

    def axis(v, extent: int, kind: int):
        return tirx.IterVar(ir.Range(index(0), index(extent)), v, kind)

    where = [*stage.spatial, outer]
    term = substitute(term, {var: outer * index(length) + inner})
    spatial = [it for it in stage.iters if it.iter_type == SPATIAL]
    others = [it for it in stage.iters if it.iter_type == REDUCE and not it.var.same_as(var)]
    first = Stage(
        "partial",
        (*spatial, axis(outer, parts, SPATIAL), axis(inner, length, REDUCE), *others),
        tirx.BufferStore(buffer, combine(buffer[tuple(where)], term), where),
        tirx.BufferStore(buffer, stage.init.value, where),
    )
    own = stage.body.buffer[tuple(stage.body.indices)]
    body = tirx.BufferStore(stage.body.buffer, combine(own, buffer[tuple(where)]), list(stage.body.indices))
    return first, replace(stage, iters=(*spatial, axis(outer, parts, REDUCE)), body=body)
