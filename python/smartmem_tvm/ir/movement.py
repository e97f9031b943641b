# SPDX-License-Identifier: Apache-2.0
"""Pure data movement: the index map of a kernel whose output elements are all copies of input elements or constants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx

from .index_map import is_if_then_else
from .kernel import Kernel, Stage
from .walk import loads


@dataclass(frozen=True)
class Piece:
    """One branch of a data movement: where `condition` holds, the output element is ``source[indices]``.

    `source` is None for a constant (padding). `condition` is None where there is only one branch.
    """

    condition: object | None
    source: object | None
    indices: tuple


@dataclass(frozen=True)
class Movement:
    """A pure data movement: its iterators, their extents, and the pieces of its index map (output -> input)."""

    stage: Stage
    pieces: tuple[Piece, ...]

    @cached_property
    def index_map(self) -> tirx.IndexMap | None:
        """The map from output index to input index, None if there are several pieces."""
        if len(self.pieces) != 1 or self.pieces[0].source is None:
            return None
        return tirx.IndexMap(list(self.stage.spatial), list(self.pieces[0].indices), None)

    def __str__(self) -> str:
        indices = ", ".join(readable(v) for v in self.stage.spatial)
        return f"[{indices}] -> {readable(self.stage.body.value)}"


def readable(expr) -> str:
    """Return the text of an index expression without dtype prefixes and ``v_`` in names."""
    text = re.sub(r"T\.int(?:32|64)\((-?\d+)\)", r"\1", str(expr))
    return re.sub(r"\bT\.|\bv_", "", text)


def movement(kernel: Kernel) -> Movement | None:
    """Return the data movement that a kernel performs, or None if it computes.

    A kernel moves data if it is one pointwise stage whose value is a load, a constant, or a select between such
    values, so that every output element is a copy.
    """
    stage = kernel.last
    if len(kernel.stages) != 1 or not stage.is_pointwise:
        return None
    pieces = _pieces(stage.body.value, None)
    if pieces is None or all(p.source is None for p in pieces):
        return None
    return Movement(stage, tuple(pieces))


def _pieces(value, condition) -> list[Piece] | None:
    if isinstance(value, ir.TensorLoad):
        return [Piece(condition, value.source, tuple(value.indices))]
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return [Piece(condition, None, ())]
    if is_if_then_else(value):
        test, yes, no = value.args
    elif isinstance(value, tirx.Select):
        test, yes, no = value.condition, value.true_value, value.false_value
    else:
        return None
    if loads(test):
        return None  # where(mask, a, b) computes
    first, second = _pieces(yes, _both(condition, test)), _pieces(no, _both(condition, tirx.Not(test)))
    return first + second if first is not None and second is not None else None


def _both(a, b):
    return b if a is None else tirx.And(a, b)
