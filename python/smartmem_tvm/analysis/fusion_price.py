# SPDX-License-Identifier: Apache-2.0
"""Price a fusion: predicted cycles of the fused kernel against those of its parts, as the schedule rules plan them.

The papers' tables decide whether two kernels may become one (`analysis.fusion`), but they do not model schedules. A
target with a cost model provides `Prices` (`schedule.price`); of two legal ways, the cheaper prediction wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..ir.graph import Node
from ..ir.index_map import variables
from ..ir.kernel import Kernel, shape_of
from ..tables.fusion_policy import MOST_REPEATED, PRICE_MARGIN
from .work import pads

PRICE = "price"
PRICIER = "its schedule would take longer than those of the parts"


class Prices(Protocol):
    """Predicted costs of kernels; `schedule.price.Prices` is one implementation."""

    def compare(self, fused: Iterable[Kernel], parts: Iterable[Kernel]) -> tuple[float, float] | None:
        """Return the cycles of all fused kernels and of all parts; None if some of them have no price."""


@dataclass(frozen=True)
class Verdict:
    """The prices of a fusion in cycles, fused and as separate kernels; both are None if unknown."""

    fused: float | None = None
    separate: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether the parts are clearly cheaper."""
        return self.fused is not None and self.fused > PRICE_MARGIN * self.separate

    @property
    def noted(self) -> dict:
        """Entry for the log of decisions: ``decided_by`` in words, and ``cycles`` of both ways."""
        if self.fused is None:
            return {}
        words = f"{PRICE}: {_millions(self.fused)} cycles fused, {_millions(self.separate)} separate"
        return {"decided_by": words, "cycles": {"fused": round(self.fused), "apart": round(self.separate)}}


NO_PRICE = Verdict()


def judge(prices: Prices | None, fused: Iterable[Kernel], parts: Iterable[Kernel], more: float = 0.0) -> Verdict:
    """Compare the price of fused kernels, plus `more` cycles, with that of their parts."""
    found = prices.compare(fused, parts) if prices is not None else None
    return NO_PRICE if found is None else Verdict(found[0] + more, found[1])


def _millions(cycles: float) -> str:
    return f"{cycles / 1e6:.2f} M"


def repeats_in_windows(node: Node, reader: Node) -> bool:
    """Whether a reader computes elements of a node again for each window that contains them.

    The operand of a GEMM does not count, although the iterators of the other operand read it again: it is packed once.
    """
    buffer = reader.kernel.inputs[position(reader, node.var)]
    for stage in reader.kernel.readers(buffer):
        used = {v for indices in stage.maps(buffer) for index in indices for v in variables(index)}
        if stage.reduction and all(v in used for v in stage.spatial if stage.extents[v] > 1):
            return evaluations(reader, node.var) > MOST_REPEATED * math.prod(shape_of(buffer))
    return False


def evaluations(reader: Node, var, padding_stored: bool = True) -> int:
    """Return how often the reader evaluates a load of `var`: once per distinct map and point of every stage.

    Parameters
    ----------
    padding_stored : bool
        Whether padded tensors are stored; if not, they are evaluated at each of their reads.
    """
    kernel = reader.kernel

    def of(buffer) -> int:
        total = 0
        for stage in kernel.stages:
            maps = len(stage.maps(buffer))
            inside = stage.is_pointwise and stage is not kernel.last
            if maps and inside and not padding_stored and pads(stage.body.value):
                total += maps * of(stage.outputs[0])
            else:
                total += maps * math.prod(stage.extents.values())
        return total

    return of(kernel.inputs[position(reader, var)])


def position(node: Node, var) -> int:
    """Return the position of a tensor among the operands of a node."""
    return next(i for i, arg in enumerate(node.args) if arg.same_as(var))
