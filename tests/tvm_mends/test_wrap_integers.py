# SPDX-License-Identifier: Apache-2.0
"""WrapIntegers: integers that go around."""

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm
from helpers import legal, module, op
from smartmem_tvm.tvm_mends import WrapIntegers

OPERATORS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
DTYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def numbers(dtype: str) -> np.ndarray:
    most = int(np.iinfo(dtype).max)
    small = [0, 1, 2, 6, 1 << 15, (1 << 16) + 1, most // 2, most // 2 + 1, most // 3, most - 1, most, most + 1, -2, -1]
    return np.array([each % (1 << 64) for each in small], "uint64").astype(dtype)


def compute(mod, *inputs, **options):
    (got,) = smartmem_tvm.compile(mod, options=smartmem_tvm.Options(**options)).run(*inputs)
    return got


@pytest.mark.pairwise
@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_go_around(name, dtype, schedule):
    a, b = numbers(dtype)[:, None], numbers(dtype)[None]
    mod = module(getattr(op, name), (a.shape, dtype), (b.shape, dtype))
    np.testing.assert_array_equal(compute(mod, a, b, schedule=schedule), OPERATORS[name](a, b))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0, 5, -8])
def test_constants(dtype, number):
    """LLVM makes 0 of `0 - x` where it is told that nothing goes around, and an `or` of ``x + smallest``."""
    x, start = numbers(dtype), np.array(number).astype(dtype)
    mod = module(lambda x: op.subtract(relax.const(start, dtype), x), (x.shape, dtype))
    np.testing.assert_array_equal(compute(mod, x), start - x)
    least = np.array(np.iinfo(dtype).min, dtype)
    mod = module(lambda x: op.add(x, relax.const(least, dtype)), (x.shape, dtype))
    np.testing.assert_array_equal(compute(mod, x), x + least)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_of_three(dtype):
    """What is left of operands that cancel is no excuse to go around."""
    x = numbers(dtype)
    mod = module(lambda x: op.subtract(op.subtract(x, x), x), (x.shape, dtype))
    np.testing.assert_array_equal(compute(mod, x), x - x - x)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_comparisons_of_sums(dtype):
    """One more is not always more."""
    x, one = numbers(dtype), np.ones((), dtype)
    mod = module(lambda x: op.greater(op.add(x, relax.const(one, dtype)), x), (x.shape, dtype))
    np.testing.assert_array_equal(compute(mod, x), x + one > x)


def test_many_operands_stay_short():
    """An operand is written once: else a sum of 40 would have 2^40 of the first."""

    def total(x):
        value = x
        for _ in range(40):
            value = op.add(op.multiply(value, relax.const(3, "int64")), x)
        return value

    x = expected = numbers("int64")
    for _ in range(40):
        expected = expected * 3 + x
    np.testing.assert_array_equal(compute(module(total, (x.shape, "int64")), x), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_other_types_are_left_alone(dtype):
    with tvm.target.Target("llvm"):
        mod = legal(lambda x: op.subtract(x, x), (2, 4), dtype=dtype)
        assert WrapIntegers()(mod).same_as(mod)


def test_sums_of_reductions_and_indices_are_left_alone():
    with tvm.target.Target("llvm"):
        mod = legal(lambda x: op.sum(op.permute_dims(x), [0]), (2, 4), dtype="int32")
        assert WrapIntegers()(mod).same_as(mod)


def test_of_bytes_are_left_alone():
    """Products of bytes, and their sums, are what quantized networks consist of."""
    with tvm.target.Target("llvm"):
        mod = legal(lambda a, b: op.matmul(a, b, out_dtype="int32"), (2, 4), (4, 3), dtype="int8")
        assert WrapIntegers()(mod).same_as(mod)


def test_only_on_cpus():
    """No C for GPUs has integers of 128 bits."""
    mod = legal(lambda a, b: op.subtract(a, b), (2, 4), (2, 4), dtype="int32")
    with tvm.target.Target("cuda"):
        assert WrapIntegers()(mod).same_as(mod)
    with tvm.target.Target("llvm"):
        assert not WrapIntegers()(mod).same_as(mod)
