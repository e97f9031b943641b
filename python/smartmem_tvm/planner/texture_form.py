# SPDX-License-Identifier: Apache-2.0
"""Map the dimensions of a tensor to layers, rows, columns and texels of a texture (SmartMem 3.3, Figure 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .storage_order import Demand

TEXEL = 4  # numbers of a texel, which are read and written at once


@dataclass(frozen=True)
class ImageLimits:
    """The largest image of a device: width and height in texels, and layers."""

    width: int = 16384
    height: int = 16384
    layers: int = 2048


@dataclass(frozen=True)
class TextureForm:
    """A tensor in a texture: ``[layers..., height, width, 4]``.

    Attributes
    ----------
    texel : int
        The dimension that is split into texels.
    axes : tuple of int or None
        For each dimension of the texture but the last, a dimension of the tensor, or None for an added one of extent 1.
        Along dimension `texel` there are texels of four elements; padding in the last texel is never read.
    shape : tuple of int
        Shape of the texture, the texel last.
    """

    texel: int
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]

    def fill(self, texture: np.ndarray, tensor: np.ndarray) -> None:
        """Write a tensor's numbers, and zeros for padding, into an array of this form."""
        quads, rest = divmod(tensor.shape[self.texel], TEXEL)
        kept = [axis for axis in self.axes if axis is not None]
        images = texture.reshape([n for n, axis in zip(self.shape, self.axes) if axis is not None] + [TEXEL])
        # The tensor's dimensions in their order, then those of the texels and of their numbers.
        in_order = images.transpose([kept.index(dim) for dim in range(tensor.ndim)] + [tensor.ndim])
        dims = np.moveaxis(in_order, self.texel, -2)
        numbers = np.moveaxis(tensor, self.texel, -1)
        whole = numbers[..., : quads * TEXEL]
        dims[..., :quads, :] = whole.reshape(*whole.shape[:-1], quads, TEXEL)
        if rest:
            dims[..., quads, :rest], dims[..., quads, rest:] = numbers[..., quads * TEXEL :], 0


def texture_form(
    shape: Sequence[int],
    demands: Sequence[Demand],
    limits: ImageLimits,
    padded: bool = True,
    texel: int | None = None,
    compact: bool = False,
) -> TextureForm | str:
    """Map a tensor to a texture, or return the reason why that is impossible.

    The reduction dimension that serves most reads becomes the texel. The texels of this dimension lie beside the
    dimension that serves most of the other reads, which runs along the rows of the image; the rest keeps its order. A
    dimension along which a window slides does not become the texel for that: the results lie along it too, and the
    window slides over whole texels of another dimension.

    Parameters
    ----------
    shape : sequence of int
        Shape of the tensor.
    demands : sequence of Demand
        Demands of its readers.
    padded : bool
        Whether a dimension that is no multiple of four may become the texel, if the texels are at least half full.
    texel : int, optional
        The dimension of the texel if known; else it is chosen as above.
    compact : bool
        Whether the largest dimensions become the rows and columns of the images, whose rows devices pad. This is also
        done if there would be more layers, rows or columns than the device has.
    """
    texel = _texel(shape, demands, padded) if texel is None else texel
    if texel is None:
        return f"none of its dimensions {tuple(shape)} fills texels of {TEXEL}"
    rest = [demand for demand in demands if texel not in demand.dims]
    second = max(_wanted(rest), key=lambda dim: (_reads(rest, dim), dim), default=None)
    others = [dim for dim in range(len(shape)) if dim not in (texel, second)]
    others += [] if second is None else [second]
    # The dimensions in an image with the texels: the window of a convolution, or the rows of a matrix.
    inside = min(len(others), 2 if len(others) > 2 else 1)
    axes: list[int | None] = [*others[: len(others) - inside], texel, *others[len(others) - inside :]]
    if compact:
        axes.sort(key=lambda axis: _extent(shape, texel, axis))
    while len(axes) < 2:
        axes.insert(0, None)
    sizes = [_extent(shape, texel, axis) for axis in axes]
    layers, height, width = prod(sizes[:-2]), sizes[-2], sizes[-1]
    for what, has, most in (
        ("layers", layers, limits.layers),
        ("rows", height, limits.height),
        ("columns", width, limits.width),
    ):
        if has > most and not compact:
            return texture_form(shape, demands, limits, padded, texel, compact=True)
        if has > most:
            return f"it would have {has} {what}, and images of the device at most {most}"
    return TextureForm(texel, tuple(axes), (*sizes, TEXEL))


def _texel(shape: Sequence[int], demands: Sequence[Demand], padded: bool) -> int | None:
    def rank(dim: int) -> tuple:
        return _reads(straight, dim), shape[dim] % TEXEL == 0, dim not in slid_over, dim

    straight = [replace(demand, dims=demand.dims - demand.slid) for demand in demands]
    slid_over = {dim for demand in demands for dim in demand.slid}
    most = 2 if padded else 1
    filled = [dim for dim, extent in enumerate(shape) if _texels(extent) * TEXEL <= most * extent]
    return max(filled, key=rank, default=None)


def _wanted(demands: Iterable[Demand]) -> set[int]:
    return {dim for demand in demands for dim in demand.dims}


def _reads(demands: Sequence[Demand], dim: int) -> int:
    return sum(demand.elements for demand in demands if dim in demand.dims)


def _extent(shape: Sequence[int], texel: int, axis: int | None) -> int:
    if axis is None:
        return 1
    return _texels(shape[axis]) if axis == texel else shape[axis]


def _texels(extent: int) -> int:
    return -(-extent // TEXEL)
