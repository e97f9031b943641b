# SPDX-License-Identifier: Apache-2.0
"""RoundWeights: integers and scales of a weight in float, its error, and what stays float."""

import numpy as np
import pytest
from tvm import relax

import smartmem_tvm as sm
from helpers import calls, module, operators
from smartmem_tvm.ir.codes import Rounding
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import RoundWeights
from smartmem_tvm.transform.precision.round_weights import rounded


def weight(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.1).astype("float32")


def product(x, values=None, left=False):
    constant = relax.const(weight(96, 64) if values is None else values)
    return relax.op.matmul(constant, x) if left else relax.op.matmul(x, constant)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("depth", "group"), [(64, 16), (67, 16), (67, 67), (40, 8)])
def test_no_other_code_is_nearer(bits, depth, group):
    values = weight(depth, 21)
    codes, scales = rounded(values, bits, group)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert codes.dtype == np.int8 and codes.min() >= low and codes.max() <= high
    assert scales.shape == (-(-depth // group), 21)
    scale = np.repeat(scales, group, 0)[:depth]
    distance = np.abs(codes * scale - values)
    for step in (-1, 1):
        other = np.clip(codes + step, low, high)
        assert np.all(distance <= np.abs(other * scale - values) + 1e-6)
    assert np.linalg.norm(codes * scale - values) < {4: 0.14, 8: 0.009}[bits] * np.linalg.norm(values)


def test_zeros_and_tiny_numbers():
    values = np.zeros((16, 3), "float32")
    values[:, 1] = 1e-42
    codes, scales = rounded(values, 4, 16)
    assert not codes.any() and np.all(np.isfinite(scales))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("weights", ["int4", "int8:16"])
def test_results_are_those_of_the_rounded_weight(weights, left):
    values, rounding = weight(96, 64), Rounding.parse(weights)
    mod = module(lambda x: product(x, values.T.copy() if left else values, left), (96, 3) if left else (3, 96))
    x = np.random.default_rng(1).standard_normal((96, 3) if left else (3, 96)).astype("float32")
    (y,) = sm.compile(mod, options=sm.Options(weights=weights)).run(x)
    codes, scales = rounded(values, rounding.bits, rounding.group)
    exact = codes * np.repeat(scales, rounding.group, 0).astype("float64")
    wanted = exact.T @ x if left else x @ exact
    np.testing.assert_allclose(y, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


def test_the_error_of_each_product_is_in_the_log():
    mod = RoundWeights(Rounding.parse("int4"))(module(product, (3, 96)))
    (entry,) = read_log(mod)
    values = weight(96, 64)
    codes, scales = rounded(values, 4, 32)
    error = np.linalg.norm(codes * np.repeat(scales, 32, 0) - values) / np.linalg.norm(values)
    assert entry["error"] == pytest.approx(error, rel=1e-5) and entry["action"] == "rounded to 4 bits"
    assert any(name.startswith("dequantize_weight") for name in calls(mod))


def test_what_stays_float():
    small = module(lambda x: product(x, weight(96, 8)), (3, 96))
    stacked = module(lambda x: product(x, weight(2, 96, 64)), (2, 3, 96))
    infinite = weight(96, 64)
    infinite[3, 4] = np.inf
    for mod in (small, stacked, module(lambda x: product(x, infinite), (3, 96))):
        assert operators(RoundWeights(Rounding.parse("int4"))(mod)) == operators(mod)


def test_a_named_product_stays_float():
    mod = module(product, (3, 96))
    (entry,) = read_log(RoundWeights(Rounding.parse("int4"))(mod))
    kept = RoundWeights(Rounding.parse("int4"), [entry["operator"]])(mod)
    assert operators(kept) == operators(mod) and read_log(kept)[0]["action"] == "kept"
    with pytest.raises(sm.UserError, match="No product is called 'other'"):
        RoundWeights(Rounding.parse("int4"), ["other"])(mod)


@pytest.mark.parametrize("text", ["int5", "int4:12", "int4:0", "int4:", "int8:x", ""])
def test_what_is_no_rounding(text):
    with pytest.raises(sm.UserError, match="do not exist"):
        sm.compile(module(product, (3, 96)), options=sm.Options(weights=text))


def test_a_gpu_reads_rounded_weights():
    mod, target = module(product, (3, 96)), parse_target("opencl")
    x = np.random.default_rng(0).standard_normal((3, 96)).astype("float32")
    ways = (("cpu", sm.Options(weights="int4", rounded_floats=True)), (target, sm.Options(weights="int4")))
    floats, codes = (sm.compile(mod, each, options=options).run(x)[0] for each, options in ways)
    np.testing.assert_allclose(codes, floats, rtol=0, atol=3e-6 * np.abs(floats).max())
