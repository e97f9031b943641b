# SPDX-License-Identifier: Apache-2.0
"""Rewrite the calls of Relax functions one by one."""

from tvm import IRModule, relax, tirx
from tvm.relax.expr_functor import PyExprMutator


def rewrite_calls(mod: IRModule, mutator: PyExprMutator) -> IRModule:
    """Let `mutator`, made for `mod`, visit every Relax function, and return its builder's module."""
    for name, func in mod.functions_items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(func))
    return mutator.builder_.get()


def is_static(ty: relax.TensorType) -> bool:
    """Whether a tensor has at least one dimension, and all dimensions are constant."""
    shape = ty.shape
    return isinstance(shape, relax.ShapeExpr) and bool(shape) and all(isinstance(dim, tirx.IntImm) for dim in shape)
