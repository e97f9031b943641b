# SPDX-License-Identifier: Apache-2.0
"""Sources of operands: where a micro-kernel reads an operand at a step, and the packed copy made before, if any.

| source | where | copied |
|---|---|---|
| in place | `in_place` here, `MatmulNest.panel` | no: constant strides (left), contiguous columns (right) |
| panels of weights | `constants.pack_weights` | when the model is compiled; a task reads them in place |
| copied rows, copied panel | `MatmulNest.task_body`, `MatmulNest.panel` | by each task, or rows once by all threads |
| row offsets | `row_offsets.OffsetRows` | no: windows; the start index of each row of a tile is computed once |
| local block | `chain_product` | no: the stage before left a block of rows in scratch memory |
| matrix of a chain | `chain_product` | by each task, into panels or AMX tiles |
| AMX tiles | `amx_kernel.LeftTiles`, `RightTiles` | by each task, as bfloat16; constants when the model is compiled |
| image | `amx_image.AmxImage` | by each task, into AMX tiles, once for each column of a window (a part of im2col) |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tvm import tirx

from ...core.nest import allocate, block
from .axis import Strip


@dataclass(frozen=True, eq=False)
class DepthStep:
    """A step k along the depth: its number, or the values of the iterators that are fused into it, or both."""

    number: tirx.PrimExpr | None
    point: Mapping = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reader:
    """How an operand is read, by one tile or by all tiles of a panel.

    Attributes
    ----------
    at : callable
        ``at(strip, step)(i)`` is the element of row, or column, number `i` of the strip.
    buffers : sequence of buffer
        Scratch memory that `at` reads: a copy, or the start indices of rows; empty if there is none.
    fill : Stmt or None
        The statement that fills that memory.
    """

    at: Callable[[Strip, DepthStep], Callable]
    buffers: Sequence = ()
    fill: tirx.Stmt | None = None

    def allocated(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return a statement after the one that fills the scratch memory, inside its allocation."""
        return allocate(self.buffers, block(self.fill, body))

    def of(self, _: Strip) -> Reader:
        """Return the operand itself, as a source that is the same for all strips."""
        return self


def in_place(read: Callable) -> Reader:
    """Return the left operand whose elements are ``read(row, number of the step)``."""
    return Reader(lambda rows, step: lambda i: read(rows.first + i, step.number))


class Source(Protocol):
    """Where an operand comes from."""

    def of(self, strip: Strip) -> Reader:
        """Return the operand for a strip of rows (left), or of columns (right)."""
