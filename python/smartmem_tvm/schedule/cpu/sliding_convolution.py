# SPDX-License-Identifier: Apache-2.0
"""Recognition of a convolution of few channels in a kernel, with the padding of its picture."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir

from ...ir.kernel import Kernel, Stage
from ...ir.walk import loads
from ..core.contraction import Contraction, contraction_of
from ..core.expressions import Walk
from ..core.reduction import reduction_of
from .channelwise_window import ChannelwiseWindow, maker_of, picture_of
from .sliding_image import Image, image_of

# Rows of a group. Chosen: with more of them a packed panel is read often enough to be worth packing (2026-11-21).
_MOST_ROWS = 32
# The same, in rows, where packing gathers element by element; planes are made once. Chosen: no times were
# kept (2026-11-24).
_MOST_ROWS_STRIDED = 128
_MOST_IN_VAIN = 0.04  # sums in vain, as a fraction of the columns, up to which the second bound holds. Chosen: with it


@dataclass(frozen=True, eq=False)
class Convolution:
    """The convolution that the rule schedules.

    Attributes
    ----------
    contraction : Contraction
    image : Image
    picture : ChannelwiseWindow or None
        The picture to copy, with its padding and its lines and columns sorted into planes; None if it is read in place.
    """

    contraction: Contraction
    image: Image
    picture: ChannelwiseWindow | None


def convolution_of(kernel: Kernel) -> Convolution | None:
    """Return the convolution in a prepared kernel, or None if it is no convolution of few channels."""
    found = _contraction(kernel)
    if found is None:
        return None
    contraction, maker = found
    if not contraction.rows or contraction.extent(contraction.rows) > _MOST_ROWS_STRIDED:
        return None
    image = image_of(contraction)
    if image is None or contraction.extent(contraction.rows) > _most_rows(contraction, image):
        return None
    if maker is not None and not _lies_along(maker, len(image.load.indices) - 1):
        return None  # if copied line by line, each element would come from a cache line of its own
    if maker is None and image.strides == (1, 1):
        return Convolution(contraction, image, None)
    picture = picture_of(contraction.reduction, image, maker)
    return None if picture is None else Convolution(contraction, image, picture)


def _contraction(kernel: Kernel) -> tuple[Contraction, Stage | None] | None:
    """Return the contraction in a kernel, and the stage that pads its right operand if there is one; else None."""
    maker, rest = maker_of(kernel)
    reduction = reduction_of(Kernel(kernel.inputs, kernel.outputs, rest))
    contraction = contraction_of(reduction) if reduction is not None else None
    if contraction is None or maker is None:
        return None if contraction is None else (contraction, None)
    made = [each for each in (*loads(reduction.term), *loads(reduction.finish)) if _reads(maker, each)]
    alone = len(made) == 1 and isinstance(contraction.right, ir.TensorLoad) and _reads(maker, contraction.right)
    return (contraction, maker) if alone else None


def _lies_along(maker: Stage, dim: int) -> bool:
    """Whether the input of a stage is contiguous along a dimension of its result."""
    walk = Walk(maker.extents)
    return all(walk.load_stride(each, maker.body.indices[dim]) in (0, 1) for each in loads(maker.body.value))


def _reads(maker: Stage, load) -> bool:
    """Whether a load reads the result of a stage."""
    return load.source.same_as(maker.body.buffer)


def _most_rows(contraction: Contraction, image: Image) -> int:
    """Return the number of rows up to which sliding over a picture is faster than packing it."""
    columns = contraction.reduction.extents[image.columns[1]]
    strided = image.strides[1] > 1 and image.pitch <= (1 + _MOST_IN_VAIN) * columns
    return _MOST_ROWS_STRIDED if strided else _MOST_ROWS
