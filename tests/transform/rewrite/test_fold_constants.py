# SPDX-License-Identifier: Apache-2.0
"""FoldConstants: the bits are those of TVM's FoldConstant, and what numpy computes otherwise stays."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax

from helpers import bindings, module, op
from smartmem_tvm.ir.block import as_constant
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.transform import FoldConstants

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int32", "int64", "uint8")


def numbers(dtype: str, *shape: int) -> ir.Constant:
    """All sizes, both signs and, of floats, zeros, subnormal numbers, infinities and what is no number."""
    rng = np.random.default_rng(7)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return as_constant(rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype))
    spread = np.log2(float(np.finfo(dtype).max))
    made = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    made.ravel()[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, np.finfo(dtype).tiny / 4, -1.0]
    with np.errstate(over="ignore"):
        return as_constant(made.astype(dtype))


def calls(mod) -> list[str]:
    values = [each.value for each in bindings(mod)]
    return [value.op.name for value in values if isinstance(value, ir.Call)]


def folded(mod, fold) -> np.ndarray:
    """The one constant that is left."""
    mod = tvm.transform.Sequential([fold, relax.transform.DeadCodeElimination()])(mod)
    assert calls(mod) == []
    (made,) = [each for each in collect(mod["main"].body, ir.Constant) if isinstance(each.ty, relax.TensorType)]
    return made.value.numpy()


ARITHMETIC = {
    "add": lambda a, b: op.add(a, b),
    "subtract": lambda a, b: op.subtract(a, b),
    "multiply": lambda a, b: op.multiply(b, a),
    "divide": lambda a, b: op.divide(a, b),
    "negative": lambda a, _: op.negative(a),
    "sqrt": lambda a, _: op.sqrt(a),
    "rsqrt": lambda a, _: op.rsqrt(a),
    "less": lambda a, b: op.less(a, b),
    "less_equal": lambda a, b: op.less_equal(a, b),
    "greater": lambda a, b: op.greater(a, b),
    "greater_equal": lambda a, b: op.greater_equal(a, b),
    "equal": lambda a, b: op.equal(a, op.reshape(op.permute_dims(a), (13, 11, 3))),
    "not_equal": lambda a, b: op.not_equal(a, b),
    "where": lambda a, b: op.where(op.less(a, b), b, a),
}
MOVES = {
    "reshape": lambda a, _: op.reshape(a, (11, 39)),
    "expand_dims": lambda a, _: op.expand_dims(a, [0, 2]),
    "squeeze": lambda a, _: op.squeeze(op.expand_dims(a, [1])),
    "flatten": lambda a, _: op.flatten(a),
    "permute_dims": lambda a, _: op.permute_dims(a, [2, 0, 1]),
    "sliced": lambda a, _: op.strided_slice(a, [0, 2], [1, 2], [3, 11]),
    "sliced in steps": lambda a, _: op.strided_slice(a, [0, 1], [1, 0], [12, 10], [3, 4]),
    "sliced past the end": lambda a, _: op.strided_slice(a, [1], [4], [1000]),
    "reversed": lambda a, _: op.permute_dims(a),
    "broadcast_to": lambda _, b: op.broadcast_to(b, (13, 11, 3)),
    "take": lambda a, _: op.take(a, relax.const([[2, 0], [10, 2]], "int64"), 1),
    "take one": lambda a, _: op.take(a, relax.const(2, "int32"), -1),
    "scalars": lambda *_: op.negative(op.add(relax.const(0.1), relax.const(-0.3))),
}
CASES = [
    *((name, dtype) for name in ARITHMETIC if name != "not_equal" for dtype in FLOATS),
    *((name, dtype) for name in ("add", "subtract", "multiply") for dtype in INTEGERS),
    *((name, dtype) for name in ("less", "equal", "not_equal", "where") for dtype in INTEGERS),
    *((name, "float32") for name in MOVES),
    ("permute_dims", "int8"),
]


@pytest.mark.parametrize("name, dtype", CASES)
def test_the_bits_are_those_of_a_compiled_kernel(name, dtype):
    build = {**ARITHMETIC, **MOVES}[name]

    def make():
        return module(lambda x: build(numbers(dtype, 13, 11, 3), numbers(dtype, 11, 1)), (2,))

    mine, theirs = folded(make(), FoldConstants()), folded(make(), relax.transform.FoldConstant())
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
    same = np.where(np.isnan(mine), 0, mine).astype(dtype), np.where(np.isnan(theirs), 0, theirs).astype(dtype)
    assert same[0].tobytes() == same[1].tobytes()


def test_a_chain_of_constants_beside_an_input():
    def build(x):
        return op.multiply(x, op.expand_dims(op.rsqrt(op.add(relax.const([1.0, 2.0, 4.0]), relax.const(0.25))), [1]))

    mod = FoldConstants()(module(build, (3, 5)))
    assert calls(mod) == ["relax.multiply"]


@pytest.mark.parametrize(
    "build, left",
    [
        (lambda x: op.strided_slice(relax.const([1.0, 2.0]), [0], [1], [-3], [-1]), "relax.strided_slice"),
        (lambda x: op.exp(relax.const([1.0, 2.0])), "relax.exp"),
        (lambda x: op.divide(relax.const([7, -7], "int32"), relax.const([2, 2], "int32")), "relax.divide"),
        (lambda x: op.add(relax.const([1.0], "bfloat16"), relax.const([3.0], "bfloat16")), "relax.add"),
        (lambda x: op.add(x, relax.const([3.0])), "relax.add"),
        (lambda x: op.take(relax.const([1.0, 2.0]), relax.const([2, -1], "int64"), 0), "relax.take"),
        (lambda x: op.take(relax.const([1.0, 2.0]), relax.const([1, 0], "int64")), "relax.take"),
    ],
    ids=["backwards", "not correctly rounded", "integers truncate", "bfloat16", "an input", "outside", "no axis"],
)
def test_what_is_left_to_a_kernel(build, left):
    assert calls(FoldConstants()(module(build, (2,)))) == [left]


def test_an_index_from_the_end_that_is_constant():
    """As exporters write it: below zero, the size of the axis is added, which they read off a shape."""

    def build(x):
        size = op.strided_slice(op.shape_to_tensor(relax.ShapeExpr([3, 5])), [0], [1], [2])
        index = relax.const([-1, 2], "int64")
        return op.take(x, op.where(op.less(index, relax.const(0, "int64")), op.add(index, size), index), 1)

    mod = FoldConstants()(module(build, (3, 5)))
    assert calls(mod) == ["relax.take"]
    (taken,) = (each.value for each in bindings(mod) if isinstance(each.value, ir.Call))
    index = taken.args[1] if isinstance(taken.args[1], ir.Constant) else None
    assert index is None or np.array_equal(index.value.numpy(), [4, 2])
