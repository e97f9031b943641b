# SPDX-License-Identifier: Apache-2.0
"""Chains of bindings: the same numbers, and code generation that takes as long as the kernel is."""

import time

import numpy as np
import pytest
import tvm
from tvm import tirx

from smartmem_tvm.deploy.cpu_build import build_kernels
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.store_chains import with_stored_chains

TARGET = parse_target("llvm")
COUNT = 32


def clamped(value, low: float, high: float):
    """``min(max(value, low), high) * 1.25 + 0.5``, whose operands are read twice each."""
    given, raised = tirx.Var("given", "float32"), tirx.Var("raised", "float32")
    low, high, more, half = (tirx.const(each, "float32") for each in (low, high, 1.25, 0.5))
    inner = tirx.Let(raised, tirx.Select(given > low, given, low), tirx.Select(raised < high, raised, high) * more)
    return tirx.Let(given, value, inner + half)


def kernel(times: int, guarded: bool = False, vectors: bool = True) -> tvm.IRModule:
    x, y = (tirx.decl_buffer([COUNT], "float32", name) for name in "xy")
    at = tirx.Var("i", "int32")
    value = x[at]
    for _ in range(times):
        value = clamped(value, -1.0, 2.0)
    if guarded:
        value = tirx.if_then_else(at < 20, value, tirx.const(7, "float32"))
    kind = tirx.ForKind.VECTORIZED if vectors else tirx.ForKind.SERIAL
    body = tirx.For(at, tirx.const(0, "int32"), tirx.const(COUNT, "int32"), kind, tirx.BufferStore(y, value, [at]))
    attrs = {"global_symbol": "main", "tirx.noalias": True, "tirx.is_scheduled": True}
    return tvm.IRModule({"main": tirx.PrimFunc([x, y], body).with_attrs(attrs)})


def expected(x: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        x = np.minimum(np.maximum(x, np.float32(-1)), np.float32(2)) * np.float32(1.25) + np.float32(0.5)
    return x


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(("times", "guarded"), [(1, False), (2, False), (3, True), (16, False)])
def test_numbers(times, guarded, vectors):
    """Sixteen of them, without buffers, would be a value of 2 ** 32 operations."""
    start = time.process_time()
    built = build_kernels(kernel(times, guarded, vectors), TARGET)
    assert time.process_time() - start < 20
    x = np.linspace(-3, 3, COUNT, dtype="float32")
    given, out = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(COUNT, "float32"))
    built["main"](given, out)
    want = expected(x, times)
    want = np.where(np.arange(COUNT) < 20, want, 7) if guarded else want
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize(("times", "guarded", "buffers"), [(1, False, 0), (2, False, 1), (5, False, 4), (5, True, 0)])
def test_what_goes_through_buffers(times, guarded, buffers):
    """Each link but the last one; nothing that a condition guards."""
    (func,) = with_stored_chains(kernel(times, guarded)).functions.values()
    assert len(collect(func.body, tirx.AllocBuffer)) == buffers
    assert len(collect(func.body, tirx.Let)) == 2 * times - buffers
