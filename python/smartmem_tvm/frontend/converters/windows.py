# SPDX-License-Identifier: Apache-2.0
"""Operators with sliding windows: convolutions, pools ..."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.elementwise import in_float32
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of


def conv(node: Node) -> relax.Expr | None:
    """Conv with its pads as numbers: TVM's converter makes loops for this size of SAME_LOWER and SAME_UPPER."""
    if not node.text("auto_pad", "NOTSET").startswith("SAME"):
        return None
    kernel = tuple(node.attrs.get("kernel_shape", shape_of(node.inputs[1])[2:]))
    return _with_same_pads(node.with_inputs(*node.inputs, kernel_shape=kernel)).by_tvm()


def conv_transpose(node: Node) -> relax.Expr | None:
    """ConvTranspose with `output_shape`: compute the padding from it. TVM's converter ignores the attribute."""
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
    """MaxPool, optionally with the index of each maximum: the first one in its window."""
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
    # Below all numbers: for integers in a wider type, as the smallest integer is a valid input.
    lowest = -np.inf if "float" in dtype else int(np.iinfo(dtype).min) - 1
    x = x if "float" in dtype else node.emit(relax.op.astype(x, "int32"))
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
    # Table of places: for each window the places of its numbers.
    count = int(np.prod(result))
    window = constant((np.arange(count) * len(parts)).reshape(result), "int64")
    table = constant(np.stack(places, -1).reshape(-1), "int64")
    place = node.emit(relax.op.take(table, node.emit(relax.op.add(chosen, window))))
    plane = np.arange(int(np.prod(planes))).reshape(*planes, *ones) * int(np.prod(spatial))
    return relax.Tuple([values, node.emit(relax.op.add(place, constant(plane, "int64")))])


def _explicit(node: Node) -> Node:
    """Rewrite pools that TVM counts differently: SAME_LOWER and SAME_UPPER, and windows larger than the image.

    ONNX counts windows by C's division, which rounds towards zero: there is one if less than a stride is missing.
    """
    node = _with_same_pads(node)
    axes = _axes(node)
    gone = next((axis for axis in axes if axis.missing >= axis.stride), None)
    if gone is not None:
        raise ValueError(
            f"its window spans {gone.reach} places where there are {gone.there} with the padding, which leaves no "
            "result; make the window smaller"
        )
    if node.attrs.get("ceil_mode", 0) or all(axis.missing <= 0 for axis in axes):
        return node
    if node.attrs.get("count_include_pad", 0):
        raise ValueError(
            "its window is larger than the picture with its padding, and implementations disagree on how many places "
            "count then; leave out count_include_pad, or give more pads"
        )
    kernel, dilations = list(node.attrs["kernel_shape"]), node.attrs.get("dilations", [1] * len(axes))
    strides = [axis.stride for axis in axes]
    for at, axis in enumerate(axes):
        if axis.missing > 0:  # one window of the present places: a mean counts only those
            kernel[at], strides[at] = (axis.there - 1) // dilations[at] + 1, axis.there
    return node.with_inputs(*node.inputs, kernel_shape=tuple(kernel), strides=tuple(strides))


@dataclass(frozen=True)
class _Axis:
    """One axis of a window: sizes of the image, its padding and the window, and the stride."""

    size: int
    before: int
    after: int
    reach: int
    stride: int

    @property
    def there(self) -> int:
        """Return the number of places, padding included."""
        return self.before + self.size + self.after

    @property
    def missing(self) -> int:
        """Return the number of places that the first window lacks."""
        return self.reach - self.there

    @property
    def after_whole_windows(self) -> int:
        """Return the padding at the end that completes the last window that begins in the image, rounded up."""
        steps = -(-max(0, -self.missing) // self.stride)
        steps -= steps * self.stride >= self.before + self.size
        return self.after + max(0, steps * self.stride + self.missing)


def _axes(node: Node) -> list[_Axis]:
    """Return the axes of a pool with explicit pads."""
    sizes, kernel = shape_of(node.inputs[0])[2:], node.attrs["kernel_shape"]
    rank, ones = len(sizes), [1] * len(sizes)
    strides, dilations = node.attrs.get("strides", ones), node.attrs.get("dilations", ones)
    pads = [0] * 2 * rank if node.text("auto_pad") == "VALID" else node.attrs.get("pads", [0] * 2 * rank)
    reach = [(width - 1) * apart + 1 for width, apart in zip(kernel, dilations)]
    return list(map(_Axis, sizes, pads[:rank], pads[rank:], reach, strides))


def _with_pads(node: Node, before: Sequence[int], after: Sequence[int]) -> Node:
    return node.with_inputs(*node.inputs, pads=(*before, *after), auto_pad=b"NOTSET")


def _with_same_pads(node: Node) -> Node:
    """Replace SAME_LOWER or SAME_UPPER by explicit pads: TVM's converter rounds some of them differently."""
    same = node.text("auto_pad", "NOTSET")
    if not same.startswith("SAME"):
        return node
    axes = _axes(node.with_inputs(*node.inputs, auto_pad=b"VALID"))
    wanted = [(-(-axis.size // axis.stride) - 1) * axis.stride + axis.reach - axis.size for axis in axes]
    if any(each < -1 for each in wanted):
        raise ValueError(
            "its auto_pad leaves out numbers at the beginning, as its strides are larger than its windows; "
            "implementations disagree on which: give pads"
        )
    total = [max(0, each) for each in wanted]
    less, more = [each // 2 for each in total], [each - each // 2 for each in total]
    return _with_pads(node, *((less, more) if same == "SAME_UPPER" else (more, less)))


def average_pool(node: Node) -> relax.Expr | None:
    """AveragePool with the pads of `_explicit`."""
    explicit = _explicit(node)
    return explicit.by_tvm() if explicit is not node else None


def lp_pool(node: Node) -> relax.Expr | None:
    """LpPool of whole windows with the pads of `_explicit`; halves are computed in float32.

    TVM's converter multiplies a mean by the size of the window, but a window that exceeds the padding, which
    ``ceil_mode`` allows, averages fewer places. Powers of halves may overflow although their root does not.
    """
    explicit = _explicit(node)
    if explicit.attrs.get("ceil_mode", 0):
        axes = _axes(explicit)
        explicit = _with_pads(explicit, [axis.before for axis in axes], [axis.after_whole_windows for axis in axes])
        explicit = explicit.with_inputs(*explicit.inputs, ceil_mode=0)
    if dtype_of(node.inputs[0]) in ("float16", "bfloat16"):
        return in_float32(explicit)
    return explicit.by_tvm() if explicit is not node else None


def global_lp_pool(node: Node) -> relax.Expr | None:
    """GlobalLpPool; halves are computed in float32, as in `lp_pool`."""
    return in_float32(node) if dtype_of(node.inputs[0]) in ("float16", "bfloat16") else None


def _flat(places, sizes, column_major: int) -> np.ndarray:
    """Return the flat index of each place in its plane; places in the padding get an arbitrary one."""
    places = [np.clip(at, 0, size - 1) for at, size in zip(places, sizes)]
    return np.ravel_multi_index(places, sizes, order="F" if column_major else "C")


def max_unpool(node: Node) -> relax.Expr | None:
    """MaxUnpool; refuse a given shape, which TVM's converter reads as a tensor of the result."""
    if node.input(2) is not None:
        raise ValueError("its input output_shape is not supported; leave it out")
    return None


def space_to_depth(node: Node) -> relax.Expr | None:
    """SpaceToDepth in the order column, row, depth (CRD); TVM's converter only supports DCR."""
    if node.text("mode", "DCR") == "DCR":
        return None
    (batch, depth, height, width), size = shape_of(node.inputs[0]), node.attrs["blocksize"]
    split = node.emit(relax.op.reshape(node.inputs[0], (batch, depth, height // size, size, width // size, size)))
    moved = node.emit(relax.op.permute_dims(split, [0, 1, 3, 5, 2, 4]))
    return relax.op.reshape(moved, (batch, depth * size * size, height // size, width // size))


CONVERTERS = {
    "AveragePool": average_pool,
    "ConvTranspose": conv_transpose,
    "GlobalLpPool": global_lp_pool,
    "LpPool": lp_pool,
    "Conv": conv,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
    "SpaceToDepth": space_to_depth,
}
