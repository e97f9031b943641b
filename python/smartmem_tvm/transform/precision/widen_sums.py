# SPDX-License-Identifier: Apache-2.0
"""WidenSums: sums of float16 and bfloat16 accumulate in float32."""

from __future__ import annotations

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.compute_wider import WIDE, computed_wider, is_half
from ...ir.rewrite_calls import rewrite_calls

HALVES = ("float16", "bfloat16")

# Sums of products: operators with an attribute for the type of the sum.
_PRODUCTS = {"relax.matmul": relax.op.matmul} | {
    f"relax.nn.conv{rank}d": getattr(relax.op.nn, f"conv{rank}d") for rank in (1, 2, 3)
}
_OF_CONVOLUTIONS = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
# All other operators that sum: their operands are cast to float32, and fusion moves the cast into the reader.
_SUMS = frozenset(
    f"relax.{name}"
    for name in (
        *("sum", "mean", "prod", "variance", "std", "cumsum", "cumprod", "einsum"),
        *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("nn.softmax", "nn.log_softmax", "nn.instance_norm", "nn.group_norm", "nn.rms_norm", "nn.attention"),
        *(f"nn.{kind}avg_pool{rank}d" for kind in ("", "adaptive_") for rank in (1, 2, 3)),
    )
)


@tvm.transform.module_pass(opt_level=0, name="smartmem.WidenSums")
class WidenSums:
    """Add up halves in float32, and round the sum alone.

    Before::

        y = matmul(x, w)                                            # float16
        m = mean(y)

    After::

        y = half(matmul(x, w, out_dtype="float32"))
        m = half(mean(float(y)))

    TVM accumulates in the type of the result. A sum of 4,000 halves, rounded after each of them, is wrong by 7 %.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Widened(mod))


@mutator
class _Widened(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, ir.Op) else ""
        if (name not in _PRODUCTS and name not in _SUMS) or not is_half(call.ty, HALVES):
            return call
        if name in _PRODUCTS and all(is_half(arg.ty, HALVES) for arg in call.args):
            attributes = {each: getattr(call.attrs, each) for each in _OF_CONVOLUTIONS if hasattr(call.attrs, each)}
            wide = _PRODUCTS[name](*call.args, **attributes, out_dtype=WIDE)
            return relax.op.astype(self.builder_.emit(wide), str(call.ty.dtype.dtype))
        return computed_wider(self.builder_, call, HALVES)
