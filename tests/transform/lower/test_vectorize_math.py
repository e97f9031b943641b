# SPDX-License-Identifier: Apache-2.0
"""VectorizeMath: the formulas against float64, where they are used, and where not."""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx

import smartmem_tvm
from helpers import legal, module, op, run
from smartmem_tvm.ir.index_map import function_name
from smartmem_tvm.ir.walk import collect
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


def test_what_is_no_number():
    """By its bits; infinite numbers and the largest ones are numbers."""
    mod = vectorized(legal(lambda x: op.where(op.isnan(x), op.ones_like(x), op.zeros_like(x)), (7,)))
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert not any(function_name(call) == "isnan" for kernel in kernels for call in collect(kernel.body, ir.Call))
    largest = np.finfo("float32").max
    (got,) = run(mod, np.array([np.nan, -np.nan, np.inf, -np.inf, 0, largest, -largest], "float32"))
    np.testing.assert_array_equal(got, [1, 1, 0, 0, 0, 0, 0])


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


def scheduled(*params):
    """A function as the rules leave it: what it is made of is not looked at again."""
    func = te.create_prim_func(params).with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})
    return tvm.IRModule({"main": func})


def run_scheduled(mod, x, vector: bool):
    if vector:
        schedule = tvm.s_tir.Schedule(mod)
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[-1])
        mod = schedule.mod
    mod = vectorized(mod)
    y = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(mod, target=CPU)["main"](tvm.runtime.tensor(x), y)
    return mod, y.numpy()


@pytest.mark.parametrize("vector", [False, True])
def test_functions_nested_in_three_levels_wait_for_the_schedule(vector):
    """Code would grow with each level; a scheduled kernel binds what is read several times to variables."""
    x = te.placeholder((3, 16), "float32", "x")

    def value(i, j):
        gate = te.sigmoid(x[i, 0])
        return x[i, j] * te.sigmoid(te.tanh(gate * te.exp(x[i, j])))

    y = te.compute(x.shape, value, "y")
    unscheduled = tvm.IRModule({"main": te.create_prim_func([x, y])})
    assert "tirx.sigmoid" in library_calls(vectorized(unscheduled))
    data = np.random.default_rng(3).uniform(-3, 3, (3, 16)).astype("float32")
    mod, result = run_scheduled(scheduled(x, y), data, vector)
    assert library_calls(mod) == []
    assert len(collect(mod["main"].body, ir.Expr)) < 1000
    wide = data.astype("float64")
    gate = 1 / (1 + np.exp(-wide[:, :1]))
    expected = wide / (1 + np.exp(-np.tanh(gate * np.exp(wide))))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_what_a_condition_decides_about_is_not_computed_before_it():
    """The last element reads none of the operand, which ends before it."""
    x = te.placeholder((7,), "float32", "x")
    zero = tirx.const(0, "float32")
    y = te.compute((8,), lambda i: tirx.if_then_else(i < 7, te.exp(te.tanh(x[i])), zero), "y")
    mod = vectorized(scheduled(x, y))
    assert library_calls(mod) == [] and not collect(mod["main"].body, tirx.Bind)
    data, result = np.linspace(-2, 2, 7, dtype="float32"), tvm.runtime.tensor(np.full(8, 9, "float32"))
    tvm.compile(mod, target=CPU)["main"](tvm.runtime.tensor(data), result)
    np.testing.assert_allclose(result.numpy(), [*np.exp(np.tanh(data)), 0], rtol=2e-6)


def test_other_functions_stay():
    before = legal(op.sqrt, (4,))
    ir.assert_structural_equal(vectorized(before), before)


def test_nothing_is_bound_where_tvm_takes_a_loop_apart():
    """There is no vector of atanh: what its operand reads several times would be bound in a loop that is no more."""
    data = np.random.default_rng(0).standard_normal((32, 1, 3, 4)).astype("float32")

    def build(weights, bias):
        total = op.add(op.nn.conv2d(relax.const(data), weights), bias)
        return op.atanh(op.multiply(op.tanh(op.subtract(total, op.tanh(total))), relax.const(0.9, "float32")))

    given = [
        np.random.default_rng(1).standard_normal(shape).astype("float32") for shape in ((3, 1, 3, 3), (1, 3, 1, 1))
    ]
    mod = module(build, *((each.shape, "float32") for each in given))
    (got,) = smartmem_tvm.compile(mod).run(*given)
    windows = np.lib.stride_tricks.sliding_window_view(data[:, 0], (3, 3), axis=(1, 2)).astype("float64")
    total = np.einsum("nyxij,oij->noyx", windows, given[0][:, 0]) + given[1]
    np.testing.assert_allclose(got, np.arctanh(0.9 * np.tanh(total - np.tanh(total))), atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_a_vector_and_ties_go_to_even(dtype):
    """TVM makes a scalar loop of a vector of its own call; in kernels that no rule has scheduled the call stays."""
    x = te.placeholder((32,), dtype, name="x")
    func = te.create_prim_func([x, te.compute((32,), lambda i: tirx.nearbyint(x[i]))])
    assert "T.nearbyint" in vectorized(tvm.IRModule({"main": func})).script()
    schedule = tvm.s_tir.Schedule(func)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.vectorize(schedule.get_loops(block)[0])
    scheduled = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    after = vectorized(tvm.IRModule({"main": scheduled}))
    assert "llvm.nearbyint" in after.script() and "T.nearbyint" not in after.script()
    given = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, np.inf, -np.inf, np.nan] + [3.7] * 22, dtype)
    out = tvm.runtime.tensor(np.zeros(32, dtype))
    tvm.compile(after, CPU)["main"](tvm.runtime.tensor(given), out)
    np.testing.assert_array_equal(out.numpy(), np.rint(given))
