# SPDX-License-Identifier: Apache-2.0
"""Recognition of the picture that a window slides over, in an operand of a contraction: lines, columns, strides."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import ir

from ..core.contraction import Contraction
from ..core.expressions import Walk


@dataclass(frozen=True, eq=False)
class Image:
    """The picture that a contraction reads at ``source[lead..., y*strides[0] + tap, x*strides[1] + tap]``.

    Attributes
    ----------
    load : TensorLoad
    columns : tuple of two Var
        Line and column of the result.
    window : tuple of Var
        Reduction iterators that move within the picture.
    strides : tuple of two int
        Distance between the lines, and the columns, that neighbouring results read.
    """

    load: ir.TensorLoad
    columns: tuple
    window: tuple
    strides: tuple[int, int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of lines and of columns of the picture."""
        return tuple(int(dim) for dim in self.load.source.shape[-2:])

    @property
    def pitch(self) -> int:
        """Elements from line to line in each plane of a strided picture."""
        return -(-self.sizes[1] // self.strides[1])


def image_of(contraction: Contraction) -> Image | None:
    """Return the picture that the columns slide over in the right operand, or None if there is none."""
    load, extents = contraction.right, contraction.reduction.extents
    if not isinstance(load, ir.TensorLoad) or len(load.indices) < 2 or len(contraction.columns) < 2:
        return None
    columns, walk = contraction.columns[-2:], Walk(extents)
    steps = [{v: walk.step(at, v) for v in (*columns, *contraction.depth)} for at in load.indices]
    *lead, down, across = steps
    moved = [(down[columns[0]], down[columns[1]]), (across[columns[0]], across[columns[1]])]
    window = tuple(v for v in contraction.depth if down[v] != 0 or across[v] != 0)
    inside = all(step is not None and step >= 0 for each in (down, across) for step in each.values())
    apart = all(each[v] == 0 for each in lead for v in (*columns, *window))
    fixed = all(
        walk.step(at, v) == 0 for at in load.indices[-2:] for v in (*contraction.batch, *contraction.columns[:-2])
    )
    if not (inside and apart and fixed and moved[0][0] > 0 and moved[1][1] > 0 and moved[0][1] == moved[1][0] == 0):
        return None
    strides = moved[0][0], moved[1][1]
    # Windows that do not overlap are left to packing, which copies each of their elements only once.
    return Image(load, columns, window, strides) if prod(extents[v] for v in window) > prod(strides) else None
