# SPDX-License-Identifier: Apache-2.0
"""FoldFills: what is filled with one number, and what is not known before it runs."""

import numpy as np
import pytest
from tvm import ir, relax

from helpers import bindings, module, op
from smartmem_tvm.transform import FoldFills

SHAPE = (3, 16, 31, 3)  # TVM's FoldConstant takes minutes for integers of this shape
FILLS = {
    "full": (lambda x: op.full(relax.ShapeExpr(SHAPE), relax.const(7, "int32"), "int32"), 7),
    "full_like": (lambda x: op.full_like(x, relax.const(7, "int32")), 7),
    "zeros": (lambda x: op.zeros(SHAPE, "int32"), 0),
    "zeros_like": (op.zeros_like, 0),
    "ones": (lambda x: op.ones(SHAPE, "int32"), 1),
    "ones_like": (op.ones_like, 1),
}


def calls(mod) -> list[str]:
    values = [each.value for each in bindings(FoldFills()(mod))]
    return [value.op.name for value in values if isinstance(value, ir.Call)]


@pytest.mark.parametrize("build, number", FILLS.values(), ids=FILLS)
def test_what_is_filled_is_a_constant(build, number):
    mod = FoldFills()(module(lambda x: op.add(x, build(x)), SHAPE, dtype="int32"))
    assert calls(mod) == ["relax.add"]
    (made,) = [each.value for each in bindings(mod) if isinstance(each.value, ir.Constant)]
    assert str(made.ty.dtype) == "int32"
    np.testing.assert_array_equal(made.value.numpy(), np.full(SHAPE, number, "int32"))


def test_numbers_and_shapes_that_are_not_known_stay():
    n = relax.Var("n", relax.ShapeType(ndim=2))
    assert calls(module(op.full_like, (2, 3), ())) == ["relax.full_like"]
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(ndim=2, dtype="float32"))
    with builder.function("main", [x, n]):
        builder.emit_func_output(builder.emit(op.ones_like(x)))
    assert calls(builder.get()) == ["relax.ones_like"]
