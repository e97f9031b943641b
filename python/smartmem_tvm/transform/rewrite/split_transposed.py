# SPDX-License-Identifier: Apache-2.0
"""SplitTransposed: compute a transposed convolution without the zeros between its pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.block import constant, weight
from ...ir.rewrite_calls import is_static

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_LETTERS = {1: "W", 2: "HW", 3: "DHW"}
TRANSPOSED = {ir.Op.get(f"relax.nn.conv{count}d_transpose"): count for count in _CONVOLUTIONS}
"""Operator -> axes that its windows slide along."""


@tvm.transform.module_pass(opt_level=0, name="smartmem.SplitTransposed")
class SplitTransposed:
    """Compute each phase of a strided transposed convolution by itself, and lay them side by side.

    Before, strides s (TVM spreads the pixels apart by s, and multiplies by the zeros in between as well)::

        y = conv2d_transpose(x, w)                          w: (C, F, k, k)

    After, with m = ceil(k / s) and F s s filters, one set for each of the s s phases of the result::

        y = pixels(conv2d(x, v))                            v: (F s s, C, m, m)

    where ``pixels`` moves the phases to their places (reshape, permute_dims, strided_slice): a change of layout that
    `EliminateLayout` folds into the neighbours. The result is exact, with s s times fewer multiplications.

    Convolutions of one and of three dimensions are split alike. Refuses (leaves as they are) weights that are computed,
    dilated windows, and layouts other than NCHW and IOHW (NCW and IOW, NCDHW and IODHW).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        phases = _Phases(mod)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                phases.builder_.update_func(gvar, phases.visit_expr(func))
        return phases.builder_.get()


@dataclass(frozen=True)
class _Axis:
    """One axis: `size` pixels, a window of `kernel`, `before` results cropped at the start, `result` results kept."""

    size: int
    kernel: int
    stride: int
    before: int
    result: int

    @property
    def taps(self) -> int:
        """Return the window size of one phase."""
        return -(-self.kernel // self.stride)

    @property
    def beyond(self) -> int:
        """Return the padding that the last results read after the last pixel."""
        return max(0, (self.before + self.result - 1) // self.stride + 1 - self.size)

    @property
    def steps(self) -> int:
        """Return the results of each phase."""
        return self.size + self.beyond


@mutator
class _Phases(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Split one call."""
        call = self.visit_expr_post_order(call)
        count = TRANSPOSED.get(call.op)
        values = weight(call.args[1]) if count else None
        axes = _axes(call) if values is not None and _is_plain(call.attrs, _LETTERS[count]) else None
        if axes is None:
            return call
        groups, n = int(call.attrs.groups), int(call.args[0].ty.shape[0])
        phases = _CONVOLUTIONS[count](
            call.args[0],
            constant(_phase_weights(values, axes, groups), values),
            padding=(*(axis.taps - 1 for axis in axes), *(axis.beyond for axis in axes)),
            groups=groups,
        )
        filters, along = values.shape[1] * groups, range(count)
        strides, steps = [axis.stride for axis in axes], [axis.steps for axis in axes]
        apart = relax.op.reshape(self.builder_.emit(phases), (n, filters, *strides, *steps))
        order = [place for axis in along for place in (2 + count + axis, 2 + axis)]
        woven = relax.op.permute_dims(self.builder_.emit(apart), [0, 1, *order])
        whole = relax.op.reshape(self.builder_.emit(woven), (n, filters, *(axis.steps * axis.stride for axis in axes)))
        begin, end = ([f(axis) for axis in axes] for f in (lambda a: a.before, lambda a: a.before + a.result))
        return relax.op.strided_slice(self.builder_.emit(whole), [2 + axis for axis in along], begin, end)


def _is_plain(attrs, letters: str) -> bool:
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    strided = any(int(each) > 1 for each in attrs.strides)
    wanted = (f"NC{letters}", f"IO{letters}", f"NC{letters}")
    return layouts == wanted and strided and all(int(each) == 1 for each in attrs.dilation)


def _axes(call) -> tuple[_Axis, ...] | None:
    """Return the axes that windows slide along, or None if a size is not known."""
    types = (call.args[0].ty, call.args[1].ty, call.ty)
    if not all(map(is_static, types)):
        return None
    sizes = [[int(each) for each in ty.shape][2:] for ty in types]
    strides, before = (
        [int(each) for each in field][: len(sizes[0])] for field in (call.attrs.strides, call.attrs.padding)
    )
    return tuple(
        _Axis(size, kernel, stride, start, result)
        for size, kernel, result, stride, start in zip(*sizes, strides, before, strict=True)
    )


def _phase_weights(values: np.ndarray, axes: tuple[_Axis, ...], groups: int) -> np.ndarray:
    """Return the windows of the phases: each takes every s-th weight, in reverse."""
    channels, filters = values.shape[:2]
    padded = np.zeros((channels, filters, *(axis.taps * axis.stride for axis in axes)), values.dtype)
    padded[(slice(None), slice(None), *(slice(axis.kernel) for axis in axes))] = values
    shape = (groups, channels // groups, filters, *(size for axis in axes for size in (axis.taps, axis.stride)))
    apart = padded.reshape(shape)
    taps, phases = ([3 + 2 * number + part for number in range(len(axes))] for part in (0, 1))
    ordered = np.flip(apart, taps).transpose(0, 2, *phases, 1, *taps)  # group, filter, phases; channel, window
    return ordered.reshape(-1, channels // groups, *(axis.taps for axis in axes))
