# SPDX-License-Identifier: Apache-2.0
"""WrapUnsigned: unsigned numbers that go around."""

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm
from helpers import legal, module, op
from smartmem_tvm.transform import WrapUnsigned

OPERATORS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


def numbers(dtype: str) -> np.ndarray:
    most = int(np.iinfo(dtype).max)
    small = [0, 1, 2, 6, 1 << 15, (1 << 16) + 1, most // 2, most // 2 + 1, most // 3, most - 1, most]
    return np.array(small, "uint64").astype(dtype)


@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_go_around(name, dtype, schedule):
    a, b = numbers(dtype)[:, None], numbers(dtype)[None]
    mod = module(getattr(op, name), (a.shape, dtype), (b.shape, dtype))
    (got,) = smartmem_tvm.compile(mod, options=smartmem_tvm.Options(schedule=schedule)).run(a, b)
    np.testing.assert_array_equal(got, OPERATORS[name](a, b))


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("number", [0, 5])
def test_a_constant_less_a_number(dtype, number):
    """LLVM makes 0 of `0 - x` where it is told that nothing goes around."""
    x, start = numbers(dtype), np.array(number, dtype)
    (got,) = smartmem_tvm.compile(module(lambda x: op.subtract(relax.const(start, dtype), x), (x.shape, dtype))).run(x)
    np.testing.assert_array_equal(got, start - x)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32"])
def test_other_types_are_left_alone(dtype):
    with tvm.target.Target("llvm"):
        mod = legal(lambda x: op.subtract(x, x), (2, 4), dtype=dtype)
        assert WrapUnsigned()(mod).same_as(mod)


def test_only_on_cpus():
    mod = legal(lambda a, b: op.subtract(a, b), (2, 4), (2, 4), dtype="uint64")
    with tvm.target.Target("cuda"):
        assert WrapUnsigned()(mod).same_as(mod)
    with tvm.target.Target("llvm"):
        assert not WrapUnsigned()(mod).same_as(mod)
