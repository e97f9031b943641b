# SPDX-License-Identifier: Apache-2.0
"""VectorizeMath: the formulas against float64, where they are used, and where not."""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

from helpers import legal, op, run
from smartmem_tvm.transform import VectorizeMath

CPU = tvm.target.Target("llvm")
RANGE = np.concatenate([np.linspace(-20, 20, 20001), np.linspace(-1e-3, 1e-3, 101)]).astype("float32")
FUNCTIONS = {
    "exp": (op.exp, np.exp),
    "erf": (op.erf, np.vectorize(math.erf)),
    "tanh": (op.tanh, np.tanh),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "gelu": (op.nn.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2),
    "silu": (op.nn.silu, lambda x: x / (1 + np.exp(-x))),
}


def library_calls(mod) -> list[str]:
    found: list = []
    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func, (ir.Call, lambda c: found.append(getattr(c.op, "name", ""))))
    return [name for name in found if name.rpartition(".")[2] in FUNCTIONS]


def vectorized(mod, target=CPU):
    with target:
        return VectorizeMath()(mod.clone())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_against_float64(name):
    """Relative to the result where that is large, absolute below 1."""
    relax_op, exact = FUNCTIONS[name]
    mod = vectorized(legal(relax_op, (RANGE.size,)))
    assert library_calls(mod) == []
    expected = exact(RANGE.astype("float64"))
    error = np.abs(run(mod, RANGE)[0] - expected) / np.maximum(1, np.abs(expected))
    assert error.max() <= 2e-6


@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "sigmoid"])
def test_far_away_values(name):
    """Saturation, not garbage; exp of a very negative number is small, of a very large one large."""
    relax_op, exact = FUNCTIONS[name]
    x = np.array([-80.0, -40.0, 40.0, 80.0], "float32")
    (got,) = run(vectorized(legal(relax_op, (4,))), x)
    np.testing.assert_allclose(got, exact(x.astype("float64")), rtol=1e-5, atol=1e-6)


def test_exp_up_to_the_largest_number():
    """Right until it overflows; no number of float32 lies between the last two."""
    last = np.float32(88.72283)
    x = np.array([88.3, 88.4, 88.6, last, np.nextafter(last, np.float32(89), dtype="float32"), 200, np.inf], "float32")
    (got,) = run(vectorized(legal(op.exp, x.shape)), x)
    np.testing.assert_allclose(got[:4], np.exp(x[:4].astype("float64")), rtol=1e-5)
    assert np.isinf(got[4:]).all()


def test_exp_of_no_number():
    (got,) = run(vectorized(legal(op.exp, (2,))), np.array([np.nan, -np.inf], "float32"))
    assert np.isnan(got[0]) and got[1] == 0


def test_softmax_of_masked_scores():
    """Attention masks are large negative numbers: exp must give zero there, and rows must sum to one."""
    mod = vectorized(legal(op.nn.softmax, (2, 4)))
    (got,) = run(mod, np.array([[1, 2, -1e9, 3], [-100, 0, -1e4, 0]], "float32"))
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-6)
    assert got[0, 2] <= 1e-30
    assert got[1, 2] <= 1e-30


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_precisions_are_left_alone(dtype):
    before = legal(op.exp, (4,), dtype=dtype)
    ir.assert_structural_equal(vectorized(before), before)
    assert library_calls(before) == ["tirx.exp"]


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_other_targets_are_left_alone(target):
    """They have these functions in hardware."""
    before = legal(op.exp, (4,))
    ir.assert_structural_equal(vectorized(before, tvm.target.Target(target)), before)


def test_without_a_target_nothing_happens():
    before = legal(op.exp, (4,))
    ir.assert_structural_equal(VectorizeMath()(before.clone()), before)


def test_nested_calls():
    """A function of a function."""
    mod = vectorized(legal(lambda x: op.exp(op.tanh(x)), (64,)))
    assert library_calls(mod) == []
    x = np.linspace(-3, 3, 64, dtype="float32")
    np.testing.assert_allclose(run(mod, x)[0], np.exp(np.tanh(x.astype("float64"))), rtol=2e-6)


def test_other_functions_stay():
    before = legal(op.sqrt, (4,))
    ir.assert_structural_equal(vectorized(before), before)
