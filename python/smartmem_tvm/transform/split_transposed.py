# SPDX-License-Identifier: Apache-2.0
"""SplitTransposed: a transposed convolution without the zeros between its pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.block import constant, weight
from ..ir.rewrite_calls import is_static

TRANSPOSED = ir.Op.get("relax.nn.conv2d_transpose")


@tvm.transform.module_pass(opt_level=0, name="smartmem.SplitTransposed")
class SplitTransposed:
    """Compute each phase of a strided transposed convolution by itself, and lay them side by side.

    Before, strides s (TVM spreads the pixels apart by s, and multiplies by the zeros in between as well)::

        y = conv2d_transpose(x, w)                          w: (C, F, k, k)

    After, with m = ceil(k / s) and F s s filters, one set for each of the s s phases of the result::

        y = pixels(conv2d(x, v))                            v: (F s s, C, m, m)

    where ``pixels`` moves the phases to their places (reshape, permute_dims, strided_slice): a change of layout that
    `EliminateLayout` folds into the neighbours. Exact, with s s times fewer multiplications.

    Refuses (leaves as they are) weights that are computed, dilated ones, and layouts other than NCHW and IOHW.
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
    """Rows or columns: `size` pixels, a window of `kernel`, `before` results cut off at the start, `result` kept."""

    size: int
    kernel: int
    stride: int
    before: int
    result: int

    @property
    def taps(self) -> int:
        """Window of one phase."""
        return -(-self.kernel // self.stride)

    @property
    def beyond(self) -> int:
        """Pixels after the last one that the last results look at."""
        return max(0, (self.before + self.result - 1) // self.stride + 1 - self.size)

    @property
    def steps(self) -> int:
        """Results of each phase."""
        return self.size + self.beyond


@mutator
class _Phases(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Split one call."""
        call = self.visit_expr_post_order(call)
        values = weight(call.args[1]) if call.op == TRANSPOSED else None
        axes = _axes(call) if values is not None and _is_plain(call.attrs) else None
        if axes is None:
            return call
        rows, columns = axes
        groups, n = int(call.attrs.groups), int(call.args[0].ty.shape[0])
        phases = relax.op.nn.conv2d(
            call.args[0],
            constant(_phase_weights(values, axes, groups), values),
            padding=(rows.taps - 1, columns.taps - 1, rows.beyond, columns.beyond),
            groups=groups,
        )
        filters, (s, t) = values.shape[1] * groups, (rows.stride, columns.stride)
        apart = relax.op.reshape(self.builder_.emit(phases), (n, filters, s, t, rows.steps, columns.steps))
        woven = relax.op.permute_dims(self.builder_.emit(apart), [0, 1, 4, 2, 5, 3])
        whole = relax.op.reshape(self.builder_.emit(woven), (n, filters, rows.steps * s, columns.steps * t))
        begin, end = ([f(a) for a in axes] for f in (lambda a: a.before, lambda a: a.before + a.result))
        return relax.op.strided_slice(self.builder_.emit(whole), [2, 3], begin, end)


def _is_plain(attrs) -> bool:
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    strided = any(int(each) > 1 for each in attrs.strides)
    return layouts == ("NCHW", "IOHW", "NCHW") and strided and all(int(each) == 1 for each in attrs.dilation)


def _axes(call) -> tuple[_Axis, _Axis] | None:
    """Rows and columns of a call, or None if a size is not known."""
    types = (call.args[0].ty, call.args[1].ty, call.ty)
    if not all(map(is_static, types)):
        return None
    sizes = ([int(each) for each in ty.shape][2:] for ty in types)
    strides, before = ([int(each) for each in field][:2] for field in (call.attrs.strides, call.attrs.padding))
    return tuple(
        _Axis(size, kernel, stride, start, result)
        for size, kernel, result, stride, start in zip(*sizes, strides, before, strict=True)
    )


def _phase_weights(values: np.ndarray, axes: tuple[_Axis, _Axis], groups: int) -> np.ndarray:
    """The windows of the phases: each takes every s-th weight, backwards."""
    rows, columns = axes
    channels, filters = values.shape[:2]
    padded = np.zeros((channels, filters, rows.taps * rows.stride, columns.taps * columns.stride), values.dtype)
    padded[:, :, : rows.kernel, : columns.kernel] = values
    shape = (groups, channels // groups, filters, rows.taps, rows.stride, columns.taps, columns.stride)
    apart = padded.reshape(shape)[:, :, :, ::-1, :, ::-1]
    ordered = apart.transpose(0, 2, 4, 6, 1, 3, 5)  # group, filter, phases; channel, window
    return ordered.reshape(-1, channels // groups, rows.taps, columns.taps)
