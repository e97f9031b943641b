# SPDX-License-Identifier: Apache-2.0
"""The places of a convolution's window that lie inside the input, for each result."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, relax

from ..ir.block import CONVOLUTIONS, operator, shape_of

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class WindowAxis:
    """A dimension that a window slides along.

    Attributes
    ----------
    size, results : int
        Number of pixels of the input, and of results.
    window, stride, dilation : int
    before, after : int
        Padding in pixels.
    """

    size: int
    results: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def places(self) -> range:
        """The places of the window to keep; the places before and after them only meet padding."""
        seen = [place for place in range(self.window) if any(place in self.seen(r) for r in range(self.results))]
        if not seen:
            return range(self.window)
        # Each trimmed place removes `dilation` pixels of padding: no more places are trimmed than there is padding for.
        first = min(seen[0], self.before // self.dilation)
        last = max(seen[-1], self.window - 1 - self.after // self.dilation)
        return range(first, last + 1)

    @property
    def padding(self) -> tuple[int, int]:
        """Padding of the trimmed window."""
        before = self.before - self.places.start * self.dilation
        return before, self.after - (self.window - self.places.stop) * self.dilation

    def seen(self, result: int) -> range:
        """Return the places of the window that are inside the input for one result."""
        start = result * self.stride - self.before
        first = max(0, -(start // self.dilation))
        return range(first, max(first, min(self.window, -(-(self.size - start) // self.dilation))))

    def groups(self) -> list[tuple[range, range]]:
        """Return ranges of neighbouring results with the same places inside the input, and those places."""
        found: list[tuple[range, range]] = []
        for result in range(self.results):
            places = self.seen(result)
            if found and found[-1][1] == places:
                found[-1] = (range(found[-1][0].start, result + 1), places)
            else:
                found.append((range(result, result + 1), places))
        return found

    def pixels(self, results: range, places: range) -> range:
        """Return the pixels that some results read with some places of their windows."""
        first = results.start * self.stride + places.start * self.dilation - self.before
        return range(first, first + (len(results) - 1) * self.stride + (len(places) - 1) * self.dilation + 1)


def window_axes(call) -> list[WindowAxis] | None:
    """Return the dimensions along which a convolution's window slides.

    The result is None if the call is no convolution, a dimension is unknown, or channels do not come first.
    """
    if operator(call) not in CONVOLUTIONS:
        return None
    sizes = [shape_of(each) for each in (call.args[0], call, call.args[1])]
    if any(each is None for each in sizes):
        return None
    spatial, attrs = _SPATIAL[len(sizes[0]) - 2], call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"):
        return None
    strides, dilation, padding = ([int(each) for each in f] for f in (attrs.strides, attrs.dilation, attrs.padding))
    pads = padding[: len(spatial)], padding[len(spatial) :]
    return [WindowAxis(*each) for each in zip(*(each[2:] for each in sizes), strides, dilation, *pads, strict=True)]


def convolution(call: ir.Call, data, weights, padding: list[tuple[int, int]]) -> ir.Call:
    """Return the convolution `call` with other data, weights and padding."""
    attrs, make = call.attrs, getattr(relax.op.nn, operator(call).removeprefix("nn."))
    return make(
        data,
        weights,
        strides=[int(each) for each in attrs.strides],
        padding=[before for before, _ in padding] + [after for _, after in padding],
        dilation=[int(each) for each in attrs.dilation],
        groups=int(attrs.groups),
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )
