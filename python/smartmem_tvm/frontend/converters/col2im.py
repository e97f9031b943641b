# SPDX-License-Identifier: Apache-2.0
"""Col2Im: sum overlapping columns into an image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import relax, te, tirx

from smartmem_tvm.frontend.converters.node import Node, shape_of


def col2im(node: Node) -> relax.Expr:
    """Col2Im in any number of dimensions: each pixel is the sum of the blocks that cover it."""
    image, block = (_sizes(node, position, name) for position, name in ((1, "image_shape"), (2, "block_shape")))
    rank = len(image)
    if len(block) != rank:
        raise ValueError(f"its block_shape has {len(block)} sizes and its image_shape {rank}")
    strides, dilations = (list(node.attrs.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(node.attrs.get("pads", [0] * (2 * rank)))
    counts = [
        (image[n] + pads[n] + pads[n + rank] - dilations[n] * (block[n] - 1) - 1) // strides[n] + 1 for n in range(rank)
    ]
    _, rows, columns = shape_of(node.inputs[0])
    if rows % prod(block) or columns != prod(counts):
        raise ValueError(
            f"its {rows}x{columns} columns are not those of {prod(counts)} blocks of {prod(block)} numbers"
        )

    def fold(x: te.Tensor) -> te.Tensor:
        inside = [te.reduce_axis((0, size), f"k{n}") for n, size in enumerate(block)]

        def total(sample, channel, *place):
            starts = [at + pads[n] - inside[n] * dilations[n] for n, at in enumerate(place)]
            numbers = [start // stride for start, stride in zip(starts, strides)]
            covered = [
                tirx.all(start >= 0, number < count, start % stride == 0)
                for start, number, count, stride in zip(starts, numbers, counts, strides)
            ]
            row = channel * prod(block) + _flat(inside, block)
            value = tirx.if_then_else(tirx.all(*covered), x(sample, row, _flat(numbers, counts)), _zero(x))
            return te.sum(value, axis=inside)

        return te.compute((x.shape[0], rows // prod(block), *image), total, "fold")

    return node.bb.emit_te(fold, node.inputs[0], primfunc_name_hint="col2im")


def _zero(x: te.Tensor):
    return tirx.const(0, x.dtype)


def _flat(indices: Sequence, sizes: Sequence[int]):
    number = 0
    for index, size in zip(indices, sizes, strict=True):
        number = number * size + index
    return number


def _sizes(node: Node, position: int, name: str) -> list[int]:
    value = node.constant(position)
    if value is None:
        raise ValueError(f"its {name} is known only at run time; make it an initializer")
    return [int(size) for size in value]


CONVERTERS = {"Col2Im": col2im}
