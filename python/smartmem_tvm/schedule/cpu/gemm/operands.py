# SPDX-License-Identifier: Apache-2.0
"""Sources of operands: what a micro-kernel reads at a step, and the copy that is made of it before, if there is one.

| source | where | copied |
|---|---|---|
| in place | `in_place` here, `MatmulNest.panel` | no: a stride along the rows and the depth, or contiguous columns |
| panels of weights | `constants.pack_weights` | when the model is compiled; read in place then |
| copied rows, copied panel | `MatmulNest.work`, `MatmulNest.panel` | by each task, or once by all threads |
| row offsets | `row_offsets.OffsetRows` | no: the start index of each row of a tile is computed once |
| local block | `chain_product` | no: a block of rows that the stage before has left in scratch memory |
| matrix of a chain | `chain_product` | by each task, into panels or tiles |
| tiles | `amx_kernel.LeftTiles`, `RightTiles` | by each task, as bfloat16; constants when the model is compiled |
| image | `amx_image.AmxImage` | by each task, once for each column of a window |
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
    """A step along the depth: its number, or the values of the iterators that make it up, or both."""

    number: tirx.PrimExpr | None
    point: Mapping = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reader:
    """An operand for one tile, or for all tiles of a panel.

    Attributes
    ----------
    at : callable
        ``(strip, step) -> function of the position in the strip -> element``.
    buffers : sequence of buffer
        Scratch memory that it lies in.
    made : Stmt or None
        The statement that fills that memory.
    """

    at: Callable[[Strip, DepthStep], Callable]
    buffers: Sequence = ()
    made: tirx.Stmt | None = None

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return a statement with the operand made before it."""
        return allocate(self.buffers, block(self.made, body))

    def of(self, _: Strip) -> Reader:
        """Return the operand itself, as a source that is the same for all strips."""
        return self


def in_place(read: Callable) -> Reader:
    """Return a left operand that is read at ``read(row, step's number)``."""
    return Reader(lambda rows, step: lambda i: read(rows.first + i, step.number))


class Source(Protocol):
    """Where an operand comes from."""

    def of(self, strip: Strip) -> Reader:
        """Return the operand for a strip of rows (left), or of columns (right)."""
