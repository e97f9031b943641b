# SPDX-License-Identifier: Apache-2.0
"""Pack the image of a first convolution (few channels): tensor cores read a copy with its channels padded to four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.target import Target

from ....ir.block import as_constant
from ....ir.byte_numbers import RANGES
from ....ir.graph import Graph, Node, rewrite_graphs
from ....ir.half import rounded_to
from ....ir.index_map import variables
from ....ir.kernel import SPATIAL, Kernel, Stage, emit, parse, shape_of
from ....ir.storage import stored_as
from ...core.nest import fresh, index
from .. import machine
from ..gemm.product import MatmulProduct
from .matrix_tile import MatrixParams
from .products import multiplied_in

_CHANNELS = 4  # channels; chosen: in float16, the 8 bytes of a pixel are one asynchronous copy


@tvm.transform.module_pass(opt_level=0, name="smartmem.PackChannels")
class PackChannels:
    """Copy an image before a convolution gathers it number by number.

    Before, with three channels ``c``::

        y[b, o, h, w] += half(x[b, c, 2 * h + p, 2 * w + q]) * k[o, c, p, q]

    After, with a fourth channel of zeros in ``x'`` and ``k'``::

        x'[b, h, w, c] = half(x[b, c, h, w]) if c < 3 else 0
        y[b, o, h, w] += x'[b, 2 * h + p, 2 * w + q, c] * k'[o, c, p, q]

    The pass leaves unchanged: images of more channels; images that vector loads can read already; weights that are no
    constants; convolutions so small that one more launch takes longer.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        target = Target.current(allow_none=True)
        params = MatrixParams.of(target) if target is not None else None
        return mod if params is None else rewrite_graphs(mod, partial(pack_channels, target=target, params=params))


def pack_channels(graph: Graph, target: Target, params: MatrixParams) -> list[dict]:
    """Rewrite `graph` in place, and return a decision for each convolution that reads a copy."""
    log, copies = [], {}
    for node in graph:
        image = _image(node, target, params) if _has_few_channels(node) else None
        if image is not None:
            log.append(_pack(graph, node, image, copies))
    return log


@dataclass(frozen=True, eq=False)
class _ChannelAxis:
    """A dimension of a tensor along which channels lie."""

    buffer: object
    dim: int


@dataclass(frozen=True, eq=False)
class _Image:
    """An image that a convolution gathers number by number.

    Attributes
    ----------
    kernel : Kernel
        Kernel of the convolution.
    channels : sequence
        Iterators of a channel: of the sum, and of the stage that pads before it.
    image, weights : _Place
        Inputs of the kernel.
    padded : _Place or None
        The tensor between the stages.
    dtype : str
        Type of the factors.
    """

    kernel: Kernel
    channels: Sequence
    image: _ChannelAxis
    weights: _ChannelAxis
    padded: _ChannelAxis | None
    dtype: str


def _has_few_channels(node: Node) -> bool:
    inputs = zip(node.kernel.inputs, node.args, strict=True) if node.kernel is not None else ()
    return any(1 < size < _CHANNELS for buffer, arg in inputs if isinstance(arg, ir.Var) for size in shape_of(buffer))


def _image(node: Node, target: Target, params: MatrixParams) -> _Image | None:
    func = emit(node.kernel, node.attrs)
    multiplied = multiplied_in(func, target)
    if multiplied is None:
        return None
    product, factors = multiplied
    found = _read_by(parse(func), node, "" if factors.element.terms_innermost else factors.element.dtype)
    return found if found is not None and _is_worth(product, found.image.buffer, params) else None


def _is_worth(product: MatmulProduct, image, params: MatrixParams) -> bool:
    sides = [side for side in (product.left, product.right) if any(each.same_as(image) for each in side.sources)]
    if len(sides) != 1 or any(sides[0].closeness(along)[0] > 1 for along in (True, False)):
        return False
    gathered = sides[0].batch * sides[0].outer * sides[0].depth / (machine.GATHERED * params.limits.processors)
    return gathered > params.limits.launch_cycles


def _read_by(kernel: Kernel, node: Node, dtype: str) -> _Image | None:
    """Return the image if a single stage reads it, along its channels; None for any other kernel.

    Parameters
    ----------
    dtype : str
        Type of the factors; empty for bytes, which are stored in their own types.
    """
    constants = [b for b, arg in zip(kernel.inputs, node.args, strict=True) if isinstance(arg, ir.Constant)]
    total = next(each for each in kernel.stages if each.reduction)
    first = kernel.stages[0]
    pads = first is not total and first.is_pointwise and kernel.readers(first.body.buffer) == [total]
    weights = [load for load in total.loads if any(load.source.same_as(each) for each in constants)]
    images = [load for load in total.loads if not any(load.same_as(each) for each in weights)]
    if len(images) != 1 or len(weights) != 1 or (pads and len(first.loads) != 1):
        return None
    padded, image = (images[0], first.loads[0]) if pads else (None, images[0])
    kinds = [str(load.source.dtype) for load in (weights[0], image)]
    if (kinds[0] != dtype) if dtype else (not set(kinds) <= set(RANGES)):
        return None
    dtype = dtype or kinds[1]
    inputs = [load.source for load in (image, weights[0])]
    if any(len(kernel.readers(each)) != 1 or not any(each.same_as(i) for i in kernel.inputs) for each in inputs):
        return None
    for dim, at in enumerate(image.indices):
        size = shape_of(image.source)[dim]
        if not 1 < size < _CHANNELS or sum(at in variables(each) for each in image.indices) != 1:
            continue
        place = _dim_of(first.body.indices, at) if pads else None
        channel = padded.indices[place] if place is not None else at
        number = _dim_of(weights[0].indices, channel)
        whole = total.extents.get(channel) == size and (not pads or first.extents.get(at) == size)
        if number is None or not whole:
            continue
        channels = (channel, at) if pads else (channel,)
        between = _ChannelAxis(first.body.buffer, place) if pads else None
        return _Image(
            kernel, channels, _ChannelAxis(image.source, dim), _ChannelAxis(inputs[1], number), between, dtype
        )
    return None


def _dim_of(indices, var) -> int | None:
    return next((dim for dim, at in enumerate(indices) if at.same_as(var)), None)


def _pack(graph: Graph, node: Node, found: _Image, copies: dict) -> dict:
    args, inputs = list(node.args), found.kernel.inputs
    position, number = (
        next(i for i, each in enumerate(inputs) if each.same_as(place.buffer)) for place in (found.image, found.weights)
    )
    given, dims = args[position], range(len(inputs[position].shape))
    order = [*(dim for dim in dims if dim != found.image.dim), found.image.dim]
    if (given, found.dtype) not in copies:
        kernel, made = _copy(inputs[position], order, found.dtype)
        var = relax.DataflowVar(f"{given.name}_channels", relax.TensorType(list(made.shape), found.dtype))
        graph.insert(node, [Node(var, given, [given], kernel, members=[f"channels of {given.name}"])])
        copies[given, found.dtype] = var, made
    args[position], packed = copies[given, found.dtype]
    values = args[number].value.numpy()
    room = [(0, _CHANNELS - size if dim == found.weights.dim else 0) for dim, size in enumerate(values.shape)]
    args[number] = as_constant(np.pad(values, room))
    changed = {inputs[position]: (packed, order)}
    changed |= {place.buffer: _filled(place) for place in (found.weights, found.padded) if place is not None}
    graph.rebind(node, _reading(found.kernel, changed, found.channels), args)
    size = shape_of(inputs[position])[found.image.dim]
    reason = f"{size} channels would be gathered number by number"
    operator = node.members[0] if node.members else node.var.name
    return {"pass": "PackChannels", "operator": operator, "action": f"reads a copy of {given.name}", "reason": reason}


def _filled(place: _ChannelAxis) -> tuple:
    """Return a tensor with padded channels, and the order of its dimensions."""
    shape = [_CHANNELS if dim == place.dim else size for dim, size in enumerate(shape_of(place.buffer))]
    made = tirx.decl_buffer(list(map(index, shape)), place.buffer.dtype, place.buffer.name)
    return made, list(range(len(shape)))


def _copy(buffer, order: list[int], dtype: str) -> tuple[Kernel, object]:
    """Return the kernel that makes the copy, and its result."""
    shape = shape_of(buffer)
    places = [fresh("p") for _ in order]
    extents = [*(shape[dim] for dim in order[:-1]), _CHANNELS]
    at = dict(zip(order, places, strict=True))
    value = rounded_to(buffer[tuple(at[dim] for dim in range(len(order)))], dtype)
    inside = places[-1] < index(shape[order[-1]])
    made = tirx.decl_buffer(list(map(index, extents)), dtype, "channels")
    body = tirx.BufferStore(made, tirx.if_then_else(inside, value, tirx.const(0, dtype)), places)
    iters = [tirx.IterVar(ir.Range(0, index(size)), var, SPATIAL) for var, size in zip(places, extents, strict=True)]
    return Kernel((buffer,), (made,), (Stage("channels", tuple(iters), body),)), made


def _reading(kernel: Kernel, changed: dict, channels: Sequence) -> Kernel:
    """Return the kernel with tensors replaced by copies, in the new order of dimensions, and with padded channels."""
    for old, (new, order) in changed.items():
        kernel = stored_as(kernel, old, new, lambda indices, order=order: [indices[dim] for dim in order])

    def cast(old):
        return old.value if str(old.ty.dtype) == str(old.value.ty.dtype) else old

    def rewrite(stage: Stage) -> Stage:
        body = tvm_ffi.structural_map(stage.body, (tirx.Cast, cast))
        return replace(stage.with_extents(dict.fromkeys(channels, _CHANNELS)), body=body)

    return replace(kernel, stages=tuple(map(rewrite, kernel.stages)))
