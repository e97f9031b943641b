# SPDX-License-Identifier: Apache-2.0
"""Windows along the positions of an open length: how many results they have, and whether they read behind the length.

A window of ``taps`` numbers, ``dilation`` apart, that goes on by ``stride`` over ``L`` positions with ``before`` and
``after`` numbers of padding reaches ``dilation * (taps - 1)`` behind its first number, and has

    (L + before + after - reach - 1) // stride + 1

results. If ``L`` is ``(n + more) // step``, that is again a number of this form, as floors of floors join. The last of
these results reads up to ``after`` numbers behind the length, where a shorter model has its padding. Results behind it
may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .items import Mixed, Share

_STRETCHING = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d", *_STRETCHING)
MAXIMA = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
MEANS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
_SIDES = "DHW"  # letters of a layout that are no channels


@dataclass(frozen=True)
class Window:
    """A window along one axis.

    Attributes
    ----------
    taps, stride, dilation, before, after : int
    rounds_up : bool
        Whether a last window that is cut counts (``ceil_mode``).
    """

    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    rounds_up: bool = False

    @property
    def reach(self) -> int:
        """Numbers from the first one of a window to its last one."""
        return self.dilation * (self.taps - 1)

    @property
    def reads_behind(self) -> bool:
        """Whether a result before the length reads numbers behind it."""
        return self.after > 0 or self.rounds_up

    def share(self, share: Share, least: int) -> Share:
        """Return where the positions of the result lie.

        Parameters
        ----------
        share : Share
            Of the operand.
        least : int
            The shortest length.

        Raises
        ------
        Mixed
            If the number of results is not of the form above for each length.
        """
        kept = self.before + self.after - self.reach
        if self.stride == 1 and kept == 0:
            return share
        more = self.stride - 1 if self.rounds_up else 0
        if self.rounds_up and more >= self.reach + 1 - self.after:
            raise Mixed("has a last window that may begin in the padding (ceil_mode)")
        # Of the `each * p` elements of `p` positions there are `(each * p + kept - 1 + more) // stride + 1` results.
        if share.each % self.stride == 0 and (kept - 1 + more) // self.stride == -1:
            return Share(share.axis, share.each // self.stride, share.more, share.step)
        if share.each != 1:
            raise Mixed("is a window over parts of positions, and its results are no whole parts of them")
        found = Share(
            share.axis, 1, share.more + share.step * (kept - 1 + self.stride + more), share.step * self.stride
        )
        if found.extent.of(least) < 1 or share.extent.of(least) + self.before + self.after <= self.reach:
            raise Mixed(f"has a window that is longer than the least length, {least}")
        return found


@dataclass(frozen=True)
class Stretch:
    """A transposed convolution along one axis, whose results are ``stride`` times as many as its operand's elements.

    Attributes
    ----------
    stride, before : int
        Number ``i`` is added to the results from ``i * stride - before`` on.
    """

    stride: int
    before: int

    @property
    def reads_behind(self) -> bool:
        """Whether a result before the length reads numbers behind it: the first one there begins ``before`` earlier."""
        return self.before > 0

    def share(self, share: Share, least: int) -> Share:
        """Return where the positions of the result lie; see `Window.share`."""
        return Share(share.axis, share.each * self.stride, share.more, share.step)


def _stretch(attrs, taps: int, place: int, before: int, after: int) -> Stretch:
    """Return what a transposed convolution does along a side."""
    stride, reach = int(attrs.strides[place]), int(attrs.dilation[place]) * (taps - 1)
    if reach + 1 + int(attrs.output_padding[place]) - before - after != stride:
        raise Mixed(f"makes other than {stride} results of each position, by which it goes on")
    return Stretch(stride, before)


def window_along(name: str, attrs, sizes: Sequence[int], axis: int) -> Window | Stretch | None:
    """Return the window of an operator along an axis of its operand; None if that axis has none.

    Parameters
    ----------
    name : str
        One of `CONVOLUTIONS`, `MAXIMA` and `MEANS`.
    attrs : tvm.ir.Attrs
    sizes : sequence of int
        The shape of the weights of a convolution.
    axis : int

    Raises
    ------
    Mixed
        If the operator counts the numbers of a window, or its result has another layout, or a transposed convolution
        makes some results besides `stride` of each number.
    """
    convolves = name in CONVOLUTIONS
    layout = str(attrs.data_layout if convolves else attrs.layout)
    if str(attrs.out_layout) != layout:
        raise Mixed("writes another layout than it reads")
    sides = [each for each in layout if each in _SIDES]
    if axis >= len(layout) or layout[axis] not in sides:
        return None
    place, count = sides.index(layout[axis]), len(sides)
    taps = sizes[str(attrs.kernel_layout).index(layout[axis])] if convolves else attrs.pool_size[place]
    before, after = int(attrs.padding[place]), int(attrs.padding[place + count])
    if name in _STRETCHING:
        return _stretch(attrs, int(taps), place, before, after)
    rounds_up = not convolves and bool(attrs.ceil_mode)
    window = Window(int(taps), int(attrs.strides[place]), int(attrs.dilation[place]), before, after, rounds_up)
    if name in MEANS and window.reads_behind and (rounds_up or not attrs.count_include_pad):
        raise Mixed("is a mean of those numbers of a window that are before the end, which is another one behind it")
    return window


def padding_along(attrs, axis: int) -> Window:
    """Return the padding of ``nn.pad`` along an axis, as a window of one number.

    Raises
    ------
    Mixed
        If it is not zeros.
    """
    if str(attrs.pad_mode) != "constant" or float(attrs.pad_value):
        raise Mixed("pads with something else than zeros")
    before, after = (int(attrs.pad_width[2 * axis + place]) for place in (0, 1))
    return Window(1, 1, 1, before, after)
