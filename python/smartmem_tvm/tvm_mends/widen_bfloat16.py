# SPDX-License-Identifier: Apache-2.0
"""WidenBfloat16: operators that TVM refuses in bfloat16, or gets wrong, are computed in float32."""

from __future__ import annotations

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.compute_wider import computed_wider, is_half
from ..ir.rewrite_calls import rewrite_calls

_BFLOAT16 = ("bfloat16",)

_OPERATORS = frozenset(
    f"relax.{name}"
    for name in (
        # TVM refuses these when operators become loops, or when loops become code.
        *("nn.layer_norm", "nn.instance_norm", "isfinite", "isinf", "isnan", "power", "mod", "floor_mod"),
        *("log_add_exp", "argmax", "argmin"),
        # TVM's sorts compare the bits of the numbers as integers.
        *("topk", "sort", "argsort", "median"),
        # LLVM has none of these for 16 bits.
        *(f"{name}{hyperbolic}" for name in ("sin", "cos", "tan", "asin", "acos", "atan") for hyperbolic in ("", "h")),
        "atan2",
    )
)


@tvm.transform.module_pass(opt_level=0, name="smartmem.WidenBfloat16")
class WidenBfloat16:
    """Compute in float32 what TVM cannot compute in bfloat16.

    Before::

        y = layer_norm(x, scale, shift)                                 # bfloat16
        place = argmax(x)

    After::

        y = bfloat16(layer_norm(float(x), float(scale), float(shift)))
        place = argmax(float(x))

    A bfloat16 is a float32 without its last 16 bits, so that the casts are exact and keep the order. Fusion moves them
    to where the operands are read. The pass runs before constants are folded, as TVM folds them by the same operators.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Widened(mod))


@mutator
class _Widened(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, ir.Op) else ""
        if name not in _OPERATORS or not any(is_half(arg.ty, _BFLOAT16) for arg in call.args):
            return call
        return computed_wider(self.builder_, call, _BFLOAT16)
