# SPDX-License-Identifier: Apache-2.0
"""Operators that slide over a picture: convolutions, pools ..."""

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.elementwise import in_float32
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def conv_transpose(node: Node) -> relax.Expr | None:
    """ConvTranspose with `output_shape`: the padding that gives it. TVM's converter ignores the attribute."""
    wanted = node.attrs.get("output_shape")
    if wanted is None:
        return None
    x, kernel = shape_of(node.inputs[0])[2:], shape_of(node.inputs[1])[2:]
    ones = [1] * len(x)
    strides, dilations = node.attrs.get("strides", ones), node.attrs.get("dilations", ones)
    more = list(node.attrs.get("output_padding", [0] * len(x)))
    before, after = [], []
    for at in range(len(x)):
        full = strides[at] * (x[at] - 1) + more[at] + (kernel[at] - 1) * dilations[at] + 1
        cut = full - wanted[-len(x) :][at]
        if cut < 0:
            more[at], cut = more[at] - cut, 0
        half = cut // 2 if node.text("auto_pad", "NOTSET") == "SAME_UPPER" else cut - cut // 2
        before.append(half)
        after.append(cut - half)
    return node.with_inputs(
        *(*node.inputs, None)[:3], pads=(*before, *after), output_padding=tuple(more), auto_pad=b"NOTSET"
    ).by_tvm()


def max_pool(node: Node) -> relax.Expr | None:
    """MaxPool, which may also name the place of each maximum: the first of those in its window."""
    explicit = _explicit(node)
    if node.outputs == 1:
        return explicit.by_tvm() if explicit is not node else None
    node = explicit
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    values = node.emit(node.by_tvm())
    planes, spatial, result = shape_of(x)[:2], shape_of(x)[2:], shape_of(values)[2:]
    ones, kernel = [1] * len(spatial), node.attrs["kernel_shape"]
    strides, dilations = node.attrs.get("strides", ones), node.attrs.get("dilations", ones)
    before = list(node.attrs.get("pads", [0] * len(spatial)))[: len(spatial)]
    reach = [
        (count - 1) * step + (size - 1) * apart + 1
        for count, step, size, apart in zip(result, strides, kernel, dilations)
    ]
    after = [max(0, far - front - size) for far, front, size in zip(reach, before, spatial)]
    lowest = -np.inf if "float" in dtype else np.iinfo(dtype).min
    widths = [0, 0, 0, 0, *(each for pair in zip(before, after) for each in pair)]
    padded = node.emit(relax.op.nn.pad(x, widths, "constant", lowest))
    axes, parts, places = list(range(2, 2 + len(spatial))), [], []
    for offset in np.ndindex(*kernel):
        first = [at * apart for at, apart in zip(offset, dilations)]
        last = [begin + (count - 1) * step + 1 for begin, count, step in zip(first, result, strides)]
        part = node.emit(relax.op.strided_slice(padded, axes, first, last, list(strides)))
        parts.append(node.emit(relax.op.expand_dims(part, -1)))
        at = [
            np.arange(count) * step + begin - front for count, step, begin, front in zip(result, strides, first, before)
        ]
        places.append(_flat(np.meshgrid(*at, indexing="ij"), spatial, node.attrs.get("storage_order", 0)))
    chosen = node.emit(relax.op.argmax(node.emit(relax.op.concat(parts, -1)), -1))
    # The table of places: window after window, with the places of its numbers.
    count = int(np.prod(result))
    window = constant((np.arange(count) * len(parts)).reshape(result), "int64")
    table = constant(np.stack(places, -1).reshape(-1), "int64")
    place = node.emit(relax.op.take(table, node.emit(relax.op.add(chosen, window))))
    plane = np.arange(int(np.prod(planes))).reshape(*planes, *ones) * int(np.prod(spatial))
    return relax.Tuple([values, node.emit(relax.op.add(place, constant(plane, "int64")))])


def _explicit(node: Node) -> Node:
    """A pool with SAME_LOWER or SAME_UPPER as the pads that it means: TVM's converter rounds some of them otherwise."""
    same = node.text("auto_pad", "NOTSET")
    if not same.startswith("SAME"):
        return node
    spatial = shape_of(node.inputs[0])[2:]
    ones, kernel = [1] * len(spatial), node.attrs["kernel_shape"]
    strides, dilations = node.attrs.get("strides", ones), node.attrs.get("dilations", ones)
    wanted = [
        (-(-size // step) - 1) * step + (width - 1) * apart + 1 - size
        for size, step, width, apart in zip(spatial, strides, kernel, dilations)
    ]
    if any(each < -1 for each in wanted):
        raise ValueError(
            "its auto_pad leaves out numbers at the beginning, as its strides are larger than its windows; "
            "implementations disagree on which: give pads"
        )
    total = [max(0, each) for each in wanted]
    less, more = [each // 2 for each in total], [each - each // 2 for each in total]
    pads = (*less, *more) if same == "SAME_UPPER" else (*more, *less)
    return node.with_inputs(*node.inputs, pads=pads, auto_pad=b"NOTSET")


def average_pool(node: Node) -> relax.Expr | None:
    """AveragePool with SAME_LOWER or SAME_UPPER: see `_explicit`."""
    explicit = _explicit(node)
    return explicit.by_tvm() if explicit is not node else None


def lp_pool(node: Node) -> relax.Expr | None:
    """LpPool with the pads of `_explicit`; of halves in float32, as powers overflow where their root does not."""
    explicit = _explicit(node)
    if dtype_of(node.inputs[0]) in ("float16", "bfloat16"):
        return in_float32(explicit)
    return explicit.by_tvm() if explicit is not node else None


def _flat(places, sizes, column_major: int) -> np.ndarray:
    """The number of each place in its plane; those in the padding may be any."""
    places = [np.clip(at, 0, size - 1) for at, size in zip(places, sizes)]
    return np.ravel_multi_index(places, sizes, order="F" if column_major else "C")


def max_unpool(node: Node) -> relax.Expr | None:
    """MaxUnpool into a given shape is refused: TVM's converter takes it for a tensor of the result."""
    if node.input(2) is not None:
        raise ValueError("its input output_shape is not supported; leave it out")
    return None


def space_to_depth(node: Node) -> relax.Expr | None:
    """SpaceToDepth in the order column, row, depth; TVM's converter knows the other one."""
    if node.text("mode", "DCR") == "DCR":
        return None
    (batch, depth, height, width), size = shape_of(node.inputs[0]), node.attrs["blocksize"]
    split = node.emit(relax.op.reshape(node.inputs[0], (batch, depth, height // size, size, width // size, size)))
    moved = node.emit(relax.op.permute_dims(split, [0, 1, 3, 5, 2, 4]))
    return relax.op.reshape(moved, (batch, depth * size * size, height // size, width // size))


CONVERTERS = {
    "AveragePool": average_pool,
    "ConvTranspose": conv_transpose,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
    "SpaceToDepth": space_to_depth,
}
