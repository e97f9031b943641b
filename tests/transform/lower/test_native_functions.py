# SPDX-License-Identifier: Apache-2.0
"""NativeFunctions: what it replaces in scheduled kernels, and its kernels on a device, in both types."""

import numpy as np
import pytest
import tvm
from tvm import ir, te, tirx
from tvm.relax import op

import smartmem_tvm
from helpers import module, random
from native_numbers import EXACT, EXPONENTS, MEASURED, function, numbers
from smartmem_tvm.deploy.textures import BUFFERS_PIPELINE, TIR_PIPELINE
from smartmem_tvm.ir.index_map import function_name
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.tables.precisions import PRECISIONS
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import NativeFunctions
from smartmem_tvm.transform.lower import native_functions
from texture_modules import TARGET, body, opencl, scheduled, single_numbers, sources

PHONE = parse_target("adreno-740")


def gelu(x):
    half = tirx.const(0.5, x.ty.dtype)
    return x * (half + tirx.erf(x * tirx.const(0.70710678, x.ty.dtype)) * half)


def gelu_of_onnx(x):
    one, half = tirx.const(1, x.ty.dtype), tirx.const(0.5, x.ty.dtype)
    return x * (tirx.erf(x * tirx.const(0.70710678, x.ty.dtype)) + one) * half


def exact(row, x):
    with np.errstate(all="ignore"):
        return (
            np.power(x, np.float64(np.dtype(row.dtype).type(EXPONENTS[0]))) if row.name == "pow" else EXACT[row.name](x)
        )


def kernel(of, dtype, count=256, schedule=scheduled):
    a = te.placeholder((count // 4, 4), dtype, name="a")
    func = schedule(te.create_prim_func([a, te.compute(a.shape, lambda i, j: of(a(i, j)), name="b")]))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def native(mod, target=PHONE):
    with target:
        return NativeFunctions()(mod)


def called(mod):
    return {function_name(call) for call in collect(mod["main"].body, ir.Call)} - {""}


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.name}-{row.dtype}")
def test_what_the_table_has_is_replaced(row):
    assert called(native(kernel(function(row), row.dtype))) <= {"native_exp2", "native_log2", "native_recip", "fabs"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("of", [gelu, gelu_of_onnx])
def test_a_gelu_has_one_power_of_two(of, dtype):
    text = str(native(kernel(of, dtype)))
    assert (text.count("native_exp2"), text.count("native_recip"), text.count("erf")) == (1, 1, 0)


@pytest.mark.parametrize("of", [tirx.sin, tirx.sqrt, tirx.log, lambda x: tirx.power(x, tirx.const(2.0, "float32"))])
def test_what_it_leaves(of):
    mod = kernel(of, "float32")
    assert native(mod).same_as(mod) or tvm.ir.structural_equal(native(mod), mod)


@pytest.mark.parametrize("target", ["opencl", "opencl-texture", "cuda", "cpu"])
def test_other_targets_stay(target):
    mod = kernel(tirx.erf, "float32")
    assert native(mod, parse_target(target) or tvm.target.Target("llvm")).same_as(mod)


def test_quotients_only_if_they_are_rounded():
    ratio = kernel(lambda x: x / (x + 1.0), "float32")
    assert called(native(ratio)) == set()
    wide = kernel(lambda x: (x.astype("float32") / (x.astype("float32") + 1.0)).astype("float16"), "float16")
    assert called(native(wide)) == {"native_recip"}


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [scheduled, single_numbers])
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.name}-{row.dtype}")
def test_kernels_on_a_device(row, schedule):
    x = numbers(row.dtype)
    x = np.where(np.isnan(x), 0, x)[: len(x) // 4 * 4].reshape(-1, 4)
    mod = native(kernel(function(row), row.dtype, x.size, schedule))
    device, pipeline = opencl(), BUFFERS_PIPELINE if row.dtype == "float32" else TIR_PIPELINE
    library = tvm.tirx.build(mod, TARGET, pipeline=pipeline)
    assert "native_" in body(sources(library)["main"])
    got = tvm.runtime.empty(x.shape, row.dtype, device)
    library["main"](tvm.runtime.tensor(x, device), got)
    expected = exact(row, x.astype("float64"))
    with np.errstate(over="ignore", invalid="ignore"):
        near = expected.astype(row.dtype)
        ulp = np.spacing(np.abs(near)).astype("float64") if row.dtype == "float16" else 0
        usable = np.isfinite(near) & (np.abs(expected) < 1e38)
    allowed = np.maximum(row.absolute, row.relative * np.abs(expected)) + ulp + 1e-37
    with np.errstate(invalid="ignore"):
        error = np.abs(got.numpy().astype("float64") - expected)
    assert (error <= allowed)[usable].all(), x[usable][np.argmax((error / allowed)[usable])]


def network(x, w):
    product = op.matmul(x, w)
    parts = [op.nn.gelu(product), op.nn.silu(product), op.nn.softmax(product), op.tanh(product), op.erf(product)]
    total = parts[0]
    for part in parts[1:]:
        total = op.add(total, part)
    return op.matmul(total, w)


@pytest.mark.each_value
@pytest.mark.parametrize("precision", ["float32", "half-storage"])
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_a_network_in_buffers_and_textures(target, precision, monkeypatch):
    monkeypatch.setattr(native_functions, "_on_phone", lambda: True)
    x, w = random((24, 32), (32, 32), seed=3)
    mod = module(network, (24, 32), (32, 32))
    made = smartmem_tvm.compile(mod, target, smartmem_tvm.Options(precision=precision))
    texts = " ".join(sources(made.executable).values())
    assert "native_exp2" in texts and not any(f" {name}(" in texts for name in ("erf", "exp", "tanh"))
    (expected,) = smartmem_tvm.compile(mod, "llvm").run(x, w)
    (got,) = made.run(x, w)
    tolerance = PRECISIONS[precision].tolerance * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_the_library_on_request():
    mod = module(op.erf, (16, 16))
    for asked in (True, False):
        made = smartmem_tvm.compile(mod, PHONE, smartmem_tvm.Options(native_functions=asked))
        texts = " ".join(sources(made.executable).values())
        assert ("native_recip" in texts, "erf(" in texts) == (asked, not asked)
