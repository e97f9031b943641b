# SPDX-License-Identifier: Apache-2.0
"""PoolFirst: average pooling moves before a 1x1 convolution, which then has fewer places."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax

from ...ir.block import Bindings, edit_blocks, operator, shape_of, with_args

_LAYOUT = "NCHW"


@tvm.transform.module_pass(opt_level=0, name="smartmem.PoolFirst")
class PoolFirst:
    """Take the mean of windows before a convolution that looks at one place at a time.

    Before::

        y = conv2d(x, w)                # w: (F, C, 1, 1), without stride
        z = avg_pool2d(add(y, b))       # windows of s s places, s apart

    After::

        z = add(conv2d(avg_pool2d(x), w), b)

    Both are linear: the convolution weighs the channels of a place, the pooling the places of a channel. The
    convolution has s s times fewer places. Results are rounded differently.

    Refused if a tensor in between has another reader, if the windows are not fewer than half of the places, if padding
    counts in the mean and there is a `b` (which is not added to padding), and for layouts other than NCHW.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return edit_blocks(mod, pool_first, leaves_unread=True)


def pool_first(block: Bindings) -> list[dict]:
    """Exchange all pairs that can be exchanged, in place; return one decision for each."""
    decisions = []
    for var in block.order:
        pool = block.values[var]
        if operator(pool) != "nn.avg_pool2d" or not _shrinks(pool):
            continue
        found = _convolution(block, pool)
        if found is None:
            continue
        conv, bias = found
        data = conv.args[0]
        first = relax.op.nn.avg_pool2d(data, **_attrs(pool))
        swapped = with_args(conv, first, conv.args[1])
        block.edit({var: swapped if bias is None else relax.op.add(swapped, bias)})
        saved = _operations(conv, math.prod(shape_of(conv)[2:])) - _operations(conv, math.prod(shape_of(pool)[2:]))
        decisions.append({"pass": "PoolFirst", "operator": var.name, "action": "exchanged", "flops_saved": saved})
    return decisions


def _shrinks(pool: ir.Call) -> bool:
    """Whether there are fewer windows than half of the places."""
    before, after = shape_of(pool.args[0]), shape_of(pool)
    plain = pool.attrs.layout == _LAYOUT and pool.attrs.out_layout in ("", _LAYOUT)
    return plain and before is not None and after is not None and 2 * math.prod(after[2:]) <= math.prod(before[2:])


def _convolution(block: Bindings, pool: ir.Call) -> tuple[ir.Call, object] | None:
    """Return the 1x1 convolution that only `pool` reads, and the bias of its channels, if there is one."""
    value, bias = _only_for(block, pool.args[0]), None
    if operator(value) == "add":
        value, bias = _only_for(block, value.args[0]), value.args[1]
        padded = pool.attrs.count_include_pad and any(int(each) for each in pool.attrs.padding)
        if padded or not _per_channel(bias):
            return None
    return (value, bias) if operator(value) == "nn.conv2d" and _looks_at_one_place(value) else None


def _only_for(block: Bindings, var):
    """Return the value of a variable that is read once, within the block; None for any other."""
    return block.values.get(var) if block.is_read_once(var) else None


def _per_channel(bias) -> bool:
    shape = shape_of(bias)
    return isinstance(bias, ir.Constant) and shape is not None and (not shape or shape[-2:] == (1, 1))


def _looks_at_one_place(conv: ir.Call) -> bool:
    attrs, filters = conv.attrs, shape_of(conv.args[1])
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != (_LAYOUT, "OIHW", _LAYOUT) or filters is None or filters[2:] != (1, 1):
        return False
    same_type = conv.args[0].ty.dtype == conv.ty.dtype
    return same_type and all(int(s) == 1 for s in attrs.strides) and not any(int(p) for p in attrs.padding)


def _attrs(pool: ir.Call) -> dict:
    """Return the attributes of a pooling, by the names of `relax.op.nn.avg_pool2d`."""
    sizes = {name: [int(each) for each in getattr(pool.attrs, name)] for name in ("pool_size", "strides", "padding")}
    dilation = [int(each) for each in pool.attrs.dilation]
    flags = {name: bool(getattr(pool.attrs, name)) for name in ("ceil_mode", "count_include_pad")}
    return {**sizes, "dilation": dilation, **flags}


def _operations(conv: ir.Call, places: int) -> int:
    filters = shape_of(conv.args[1])
    return 2 * shape_of(conv)[0] * filters[0] * filters[1] * places
