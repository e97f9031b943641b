# SPDX-License-Identifier: Apache-2.0
"""TrimWindows: what a window has of places that only ever see padding is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax

from ..ir.block import CONVOLUTIONS, Bindings, constant, edit_blocks, operator, shape_of, weight

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@tvm.transform.module_pass(opt_level=0, name="smartmem.TrimWindows")
class TrimWindows:
    """Leave out the places of a convolution's window that see nothing but padding, whatever result is computed.

    Before::

        y = conv2d(x, w, padding=24, dilation=24)           # x: (N, C, 14, 14), w: (F, C, 3, 3)

    After::

        y = conv2d(x, w[:, :, 1:2, 1:2])                    # the outer places are 24 away from all pixels

    Exact: what is left out are products with zero. Dilated windows on small pictures have such places, and windows
    in time over a single frame.

    Refuses (leaves as they are) weights that are computed or not finite, pictures of unknown size, and orders of
    dimensions in which channels do not come first.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return edit_blocks(mod, trim_windows)


def trim_windows(block: Bindings) -> list[dict]:
    """Trim what can be trimmed, in place; returns one decision for each."""
    decisions = []
    for var in block.order:
        call = block.values[var]
        values = weight(call.args[1]) if operator(call) in CONVOLUTIONS else None
        axes = _axes(call) if values is not None and np.isfinite(values).all() else None
        if axes is None or all(axis.places == range(axis.window) for axis in axes):
            continue
        places = [axis.places for axis in axes]
        kept = values[(slice(None), slice(None), *(slice(each.start, each.stop) for each in places))]
        block.edit({var: _convolution(call, constant(kept, values), axes)})
        saved = 2 * math.prod(shape_of(call)) * math.prod(values.shape[1:])
        saved -= 2 * math.prod(shape_of(call)) * math.prod(kept.shape[1:])
        decisions.append({"pass": "TrimWindows", "operator": var.name, "action": "trimmed", "flops_saved": saved})
    return decisions


@dataclass(frozen=True)
class _Axis:
    """A dimension that a window slides along: `size` pixels, `results` of them, padding `before` and `after`."""

    size: int
    results: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def places(self) -> range:
        """The places of the window that are to be kept: what lies before and after them only sees padding."""
        live = [place for place in range(self.window) if self._sees(place)]
        if not live:
            return range(self.window)
        # Padding that is left over would be a cut: nothing is trimmed that has less of it than a step.
        first = min(live[0], self.before // self.dilation)
        last = max(live[-1], self.window - 1 - self.after // self.dilation)
        return range(first, last + 1)

    def _sees(self, place: int) -> bool:
        """Whether a place of the window is inside of the picture for some result."""
        start = place * self.dilation - self.before
        return any(0 <= start + result * self.stride < self.size for result in range(self.results))

    @property
    def padding(self) -> tuple[int, int]:
        """Padding of the window that is kept."""
        before = self.before - self.places.start * self.dilation
        return before, self.after - (self.window - self.places.stop) * self.dilation


def _axes(call: ir.Call) -> list[_Axis] | None:
    """The dimensions that a convolution slides along; None if one is unknown, or channels do not come first."""
    sizes = [shape_of(each) for each in (call.args[0], call, call.args[1])]
    if any(each is None for each in sizes):
        return None
    spatial = _SPATIAL[len(sizes[0]) - 2]
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"):
        return None
    steps = [[int(each) for each in field] for field in (attrs.strides, attrs.dilation, attrs.padding)]
    padding = steps.pop()
    pads = padding[: len(spatial)], padding[len(spatial) :]
    return [_Axis(*each) for each in zip(*(each[2:] for each in sizes), *steps, *pads, strict=True)]


def _convolution(call: ir.Call, values: ir.Constant, axes: list[_Axis]) -> ir.Call:
    """The convolution with the trimmed window."""
    pads = [axis.padding for axis in axes]
    make = getattr(relax.op.nn, operator(call).removeprefix("nn."))
    return make(
        call.args[0],
        values,
        strides=[axis.stride for axis in axes],
        padding=[before for before, _ in pads] + [after for _, after in pads],
        dilation=[axis.dilation for axis in axes],
        groups=int(call.attrs.groups),
        data_layout=call.attrs.data_layout,
        kernel_layout=call.attrs.kernel_layout,
        out_layout=call.attrs.out_layout,
        out_dtype=call.attrs.out_dtype,
    )
