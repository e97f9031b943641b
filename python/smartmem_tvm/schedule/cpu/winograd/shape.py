# SPDX-License-Identifier: Apache-2.0
"""Recognition of convolutions for Winograd's transforms: 3 x 3 windows, neither strided nor dilated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tvm import ir, tirx

from ....ir.kernel import Kernel
from ...core.contraction import Contraction, contraction_of
from ...core.expressions import Walk, uses
from ...core.reduction import reduction_of
from ..sliding_image import Image, image_of
from .transforms import WINDOW


@dataclass(frozen=True, eq=False)
class Windows:
    """A convolution ``C[b, f, y, x] = sum_{i,p,q} W[b, f, i, p, q] * D[b, i, y + p, x + q]``.

    Attributes
    ----------
    contraction : Contraction
    image : Image
        The image that the windows slide over.
    window : tuple of two Var
        Iterators over the lines and columns of the window.
    channels : tuple of Var
        The other reduction iterators.
    groups : tuple of Var
        Iterators that image and weights share.
    innermost : bool
        Channels are innermost, in the image and in the result. There are no groups then, and the innermost iterator is
        the last of `channels`.
    """

    contraction: Contraction
    image: Image
    window: tuple
    channels: tuple
    groups: tuple
    innermost: bool = False

    @property
    def weights(self):
        """The buffer of the weights."""
        return self.contraction.left.source

    @property
    def outer(self) -> tuple:
        """Iterators over pictures."""
        return (*self.contraction.batch, *self.contraction.columns[:-2])

    def makes_vectors(self, lanes: int) -> bool:
        """Whether no vector of innermost channels spans several pictures, as it may in a volume."""
        return len(self.channels) == 1 or self.extent(self.channels[-1:]) % lanes == 0

    def extent(self, vars_) -> int:
        """Return the product of the extents of iterators."""
        return self.contraction.extent(vars_)

    def windows_of(self, array: np.ndarray) -> np.ndarray:
        """Return the weights' values as (groups, filters, channels, 3, 3)."""
        walk, load, extents = Walk(self._extents), self.contraction.left, self._extents
        vars_ = (*self.groups, *self.contraction.rows, *self.channels, *self.window)
        flat = np.ascontiguousarray(array).reshape(-1)
        strides = [walk.load_stride(load, var) * flat.itemsize for var in vars_]
        shape = [extents[var] for var in vars_]
        whole = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
        sizes = (self.extent(group) for group in (self.groups, self.contraction.rows, self.channels))
        return whole.reshape(*sizes, WINDOW, WINDOW)

    @property
    def _extents(self):
        return self.contraction.reduction.extents


def windows_in(kernel: Kernel) -> Windows | None:
    """Return the convolution in a prepared kernel, or None if it has none that Winograd's transforms apply to."""
    reduction = reduction_of(kernel)
    contraction = contraction_of(reduction) if reduction is not None else None
    if contraction is None or not contraction.rows:
        return None
    innermost = _has_channels_innermost(contraction)
    contraction = contraction.swapped() if innermost else contraction
    if not isinstance(contraction.left, ir.TensorLoad):
        return None
    image = image_of(_as_planes(contraction) if innermost else contraction)
    if image is None or image.strides != (1, 1):
        return None
    window = _window(image, reduction.extents)
    image = replace(image, load=contraction.right)
    if window is None or not _is_whole(contraction, kernel):
        return None
    channels = [v for v in contraction.depth if v not in image.window]
    channels = tuple(sorted(channels, key=image.load.indices[-1].same_as)) if innermost else tuple(channels)
    groups = tuple(uses(contraction.left, contraction.batch))
    return Windows(contraction, image, window, channels, groups, innermost)


def _has_channels_innermost(contraction: Contraction) -> bool:
    """Whether the left operand is an image whose innermost dimension is the channels, which are summed up."""
    image = contraction.left
    if not isinstance(image, ir.TensorLoad) or len(image.indices) < 3 or image.indices[-1] not in contraction.depth:
        return False
    return any(uses(at, contraction.rows) and uses(at, contraction.depth) for at in image.indices)


def _as_planes(contraction: Contraction) -> Contraction:
    """Return the contraction with the innermost dimension of its right operand moved in front of lines and columns."""
    load = contraction.right
    *lead, line, column, channel = range(len(load.indices))
    order = (*lead, channel, line, column)
    planes = tirx.decl_buffer([load.source.shape[dim] for dim in order], load.ty.dtype, load.source.name)
    return replace(contraction, right=planes[tuple(load.indices[dim] for dim in order)])


def _window(image: Image, extents) -> tuple | None:
    """Return the iterators over the lines and columns of a 3 x 3 window that is not dilated, else None."""
    if len(image.window) != 2 or any(extents[v] != WINDOW for v in image.window):
        return None
    walk = Walk(extents)
    steps = {v: tuple(walk.step(at, v) for at in image.load.indices[-2:]) for v in image.window}
    found = {step: v for v, step in steps.items()}
    return (found[1, 0], found[0, 1]) if set(found) == {(1, 0), (0, 1)} else None


def _is_whole(contraction: Contraction, kernel: Kernel) -> bool:
    """Whether all types are float32, and the weights are read only here, as a whole, each element once."""
    load, extents = contraction.left, contraction.reduction.extents
    readers = [each for stage in kernel.stages for each in stage.loads if each.source.same_as(load.source)]
    types = {
        str(load.source.ty.dtype),
        str(contraction.right.ty.dtype),
        str(contraction.reduction.accumulator.ty.dtype),
    }
    vars_ = (*uses(load, contraction.batch), *contraction.rows, *contraction.depth)
    walk = Walk(extents)
    steps = [walk.load_stride(load, var) for var in vars_]
    size = prod(int(dim) for dim in load.source.shape)
    walks = all(step is not None and step > 0 for step in steps)
    return len(readers) == 1 and types == {"float32"} and walks and prod(extents[v] for v in vars_) == size
