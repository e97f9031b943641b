# SPDX-License-Identifier: Apache-2.0
"""FoldFills: tensors filled with one number are constants."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.rewrite_calls import is_static, rewrite_calls

# Operator -> position of the operand that holds the filling number, or the number itself.
_BY_OPERAND = {"relax.full": 1, "relax.full_like": 1}
_BY_NAME = {"relax.zeros": 0, "relax.zeros_like": 0, "relax.ones": 1, "relax.ones_like": 1}


@tvm.transform.module_pass(opt_level=0, name="smartmem.FoldFills")
class FoldFills:
    """Write a tensor of known shape that is filled with one number as a constant.

    Before::

        y = full_like(x, 1)                                         # (3, 16, 31, 3)

    After::

        y = constant                                                # ones (3, 16, 31, 3)

    TVM's FoldConstant compiles a loop for it, with LLVM's vector passes but without vector instructions beyond SSE2.
    LLVM 22 takes minutes for integers of this shape (docs/tvm-issues.md).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Filled(mod))


@mutator
class _Filled(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, ir.Op) else ""
        number = _BY_NAME.get(name)
        if name in _BY_OPERAND and isinstance(call.args[_BY_OPERAND[name]], ir.Constant):
            number = call.args[_BY_OPERAND[name]].value.numpy()
        if number is None or not is_static(call.ty):
            return call
        dtype = str(call.ty.dtype.dtype)
        return relax.const(np.full([int(size) for size in call.ty.shape], number).astype(dtype), dtype)
