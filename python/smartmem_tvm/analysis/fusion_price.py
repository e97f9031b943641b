# SPDX-License-Identifier: Apache-2.0
"""Does a fusion pay: what the schedule rules would make of the fused kernel, against what they make of its parts.

Whether two kernels may become one is said by the papers' tables (`analysis.fusion`); they do not know what a schedule
can do with the result. A target that can tell brings `Prices` (`schedule.price`), and of two legal ways the one that is
predicted to take fewer cycles is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..ir.compose import MOST_REPEATED
from ..ir.graph import Node
from ..ir.index_map import variables
from ..ir.kernel import Kernel, shape_of
from .work import pads

# A prediction is within this factor of what is measured for most kernels: a smaller difference says nothing, and the
# fused kernel needs no memory for what passes between the parts.
MARGIN = 1.25
# Cycles for a weight that several sums read: it stays in the order that it comes in, and each of them waits for it. Of
# one sum it is stored as that reads it. Gated, on a Xeon with AVX-512: 4.9 for 128 x 512 by 512 x 2 x 1408, and more
# for larger ones.
UNPACKED = 5.0
PRICE = "price"
PRICIER = "its schedule would take longer than those of the parts"


class Prices(Protocol):
    """What kernels would cost; `schedule.price.Prices` is one."""

    def compare(self, fused: Iterable[Kernel], parts: Iterable[Kernel]) -> tuple[float, float] | None:
        """Cycles of fused kernels, and of what they are made of, together; None if some of them have no price."""


@dataclass(frozen=True)
class Verdict:
    """What prices say of a fusion; both are None where nothing is known."""

    fused: float | None = None
    apart: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether the parts are clearly cheaper."""
        return self.fused is not None and self.fused > MARGIN * self.apart

    @property
    def noted(self) -> dict:
        """For the log of decisions: ``decided_by`` in words, and ``cycles`` of both."""
        if self.fused is None:
            return {}
        words = f"{PRICE}: {_millions(self.fused)} cycles fused, {_millions(self.apart)} apart"
        return {"decided_by": words, "cycles": {"fused": round(self.fused), "apart": round(self.apart)}}


NO_PRICE = Verdict()


def judge(prices: Prices | None, fused: Iterable[Kernel], parts: Iterable[Kernel], more: float = 0.0) -> Verdict:
    """Compare the price of fused kernels, and `more` cycles, with that of their parts."""
    found = prices.compare(fused, parts) if prices is not None else None
    return NO_PRICE if found is None else Verdict(found[0] + more, found[1])


def _millions(cycles: float) -> str:
    return f"{cycles / 1e6:.2f} M"


def repeats_in_windows(node: Node, reader: Node) -> bool:
    """Whether elements of a node are computed again for each window of a reader that they are in.

    Not where they are an operand of a product, which another operand's iterators read again: it is packed, once.
    """
    buffer = reader.kernel.inputs[position(reader, node.var)]
    for stage in reader.kernel.readers(buffer):
        used = {v for indices in stage.maps(buffer) for index in indices for v in variables(index)}
        if stage.reduction and all(v in used for v in stage.spatial if stage.extents[v] > 1):
            return evaluations(reader, node.var) > MOST_REPEATED * math.prod(shape_of(buffer))
    return False


def evaluations(reader: Node, var, padding_stored: bool = True) -> int:
    """How often the reader evaluates a load of `var`: once per distinct map and point of every stage.

    Parameters
    ----------
    padding_stored : bool
        If not, what is only padded is evaluated as often as the padding is read.
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
    """Which operand of a node a tensor is."""
    return next(i for i, arg in enumerate(node.args) if arg.same_as(var))
