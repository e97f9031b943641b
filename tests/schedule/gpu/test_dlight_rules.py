# SPDX-License-Identifier: Apache-2.0
"""Kernels on a grid of threads: which rule takes which, and what they compute on an OpenCL device."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi

import smartmem_tvm
from helpers import module, op, random
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import dlight_rules
from smartmem_tvm.schedule.gpu.dlight_rules import OneThreadEach, TvmRule
from smartmem_tvm.schedule.gpu.operand_views import with_views
from smartmem_tvm.target import device_of, parse_target

TARGET = parse_target("opencl")
EACH = "OneThreadEach"


def family(func) -> str:
    """Name of the rule that takes the kernel."""
    for rule in dlight_rules():
        try:
            if rule.apply(func, TARGET) is not None:
                return type(rule.rule if type(rule) is TvmRule else rule).__name__
        except tvm.s_tir.schedule.ScheduleError:
            continue
    return ""


def check(inputs, outputs, reference, rule):
    """Schedule, run and compare with numpy; returns the OpenCL source."""
    device = device_of(TARGET)
    func = te.create_prim_func([*inputs, *outputs]).with_attr("global_symbol", "main")
    assert family(func) == rule
    with TARGET:
        mod = ScheduleKernels(dlight_rules())(tvm.IRModule({"main": func}))
    assert mod["main"].attrs["tirx.is_scheduled"]
    built = tvm.compile(mod, TARGET)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal([int(d) for d in t.shape]).astype(str(t.dtype)) for t in inputs]
    results = [tvm.runtime.tensor(np.full([int(d) for d in t.shape], 7, str(t.dtype)), device) for t in outputs]
    built["main"](*(tvm.runtime.tensor(a, device) for a in arrays), *results)
    expected = reference(*arrays)
    for got, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
    (kernels,) = built.mod.imports
    return kernels.inspect_source()


def tensor(*shape):
    return te.placeholder(shape, name="x")


def kernels(source: str) -> int:
    return source.count("// Function: ")


def test_elementwise_is_one_kernel():
    x = tensor(5, 7, 3)
    output = topi.nn.relu(topi.transpose(topi.exp(x), (2, 0, 1)))
    source = check([x], [output], lambda x: np.exp(x).transpose(2, 0, 1), "Fallback")
    assert kernels(source) == 1


def test_matmul():
    x, w = tensor(40, 24), te.placeholder((24, 50), name="w")
    check([x, w], [topi.nn.relu(topi.matmul(x, w))], lambda x, w: np.maximum(x @ w, 0), "Tiled")


def test_a_matmul_of_two_parts_of_one_tensor():
    """Scores of an attention: the matmul reads queries and keys out of one projection."""
    x, k = tensor(1, 9, 48), te.reduce_axis((0, 8), "k")
    output = te.compute((2, 9, 9), lambda h, i, j: te.sum(x[0, i, h * 8 + k] * x[0, j, 16 + h * 8 + k], k))

    def reference(x):
        q, k = (x[0, :, at : at + 16].reshape(9, 2, 8).transpose(1, 0, 2) for at in (0, 16))
        return q @ k.transpose(0, 2, 1)

    assert kernels(check([x], [output], reference, "Tiled")) == 1


def test_a_matmul_through_a_roll_and_its_epilogue():
    x, w, k = tensor(8, 8, 6), te.placeholder((6, 10), name="w"), te.reduce_axis((0, 6), "k")

    def rolled(i):
        return i + 3 - tirx.Select(i + 3 >= 8, tirx.const(8), tirx.const(0))

    product = te.compute((8, 8, 10), lambda i, j, c: te.sum(x[rolled(i), rolled(j), k] * w[k, c], k))

    def reference(x, w):
        return np.maximum(np.roll(x, (-3, -3), (0, 1)) @ w, 0)

    assert kernels(check([x, w], [topi.nn.relu(product)], reference, "Tiled")) == 1


def test_a_product_without_columns_is_no_matmul():
    x, w = tensor(300, 70), te.placeholder((70,), name="w")
    k = te.reduce_axis((0, 70), "k")
    output = te.compute((300,), lambda i: te.sum(x[i, k] * w[k], k))
    assert with_views(te.create_prim_func([x, w, output])) is None
    check([x, w], [output], lambda x, w: x @ w, "Shared")


@pytest.mark.parametrize("combine", [topi.max, topi.sum])
def test_views_are_for_sums_of_products(combine):
    x = tensor(30, 40)
    assert with_views(te.create_prim_func([x, combine(x, axis=1)])) is None


def test_depthwise_convolution_with_its_padding_and_relu_is_one_kernel():
    x, w = tensor(1, 8, 6, 6), te.placeholder((8, 1, 3, 3), name="w")
    output = topi.nn.relu(topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1))

    def reference(x, w):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.maximum((windows * w[:, 0][None, :, None, None]).sum((-2, -1)), 0)

    source = check([x, w], [output], reference, EACH)
    assert kernels(source) == 1 and "barrier" not in source


def test_a_short_sum_stays_in_a_register():
    x = tensor(30, 9)
    source = check([x], [topi.sum(x, axis=1)], lambda x: x.sum(1), EACH)
    assert "barrier" not in source and kernels(source) == 1


def test_a_long_sum_is_shared():
    x = tensor(30, 900)
    assert "barrier" in check([x], [topi.sum(x, axis=1)], lambda x: x.sum(1), "Shared")


def test_rows_with_two_reductions_are_one_kernel():
    x = tensor(6, 100)

    def reference(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    assert kernels(check([x], [topi.nn.softmax(x)], reference, "Shared")) == 1


@pytest.mark.parametrize(("terms", "rule"), [(9, EACH), (900, "Shared")])
def test_argmax_has_two_results_in_its_reduction(terms, rule):
    x = tensor(4, terms)
    check([x], [topi.argmax(x, axis=1)], lambda x: x.argmax(1), rule)


def test_a_sum_of_one_term_has_no_loop_to_begin_it_in():
    x, w = tensor(2, 2, 1), te.placeholder((1, 2), name="w")
    j = te.reduce_axis((0, 1), "j")
    output = te.compute((2, 2, 2), lambda a, b, c: te.sum(x[a, b, j] * w[j, c], axis=j))
    check([x, w], [output], lambda x, w: x @ w, EACH)


def test_a_chain_of_matmuls_becomes_several_kernels():
    x, w, v = tensor(8, 70), te.placeholder((70, 80), name="w"), te.placeholder((80, 90), name="v")
    output = topi.matmul(topi.nn.relu(topi.matmul(x, w)), v)
    source = check([x, w, v], [output], lambda x, w, v: np.maximum(x @ w, 0) @ v, "Fallback")
    assert kernels(source) > 1


def test_the_number_of_threads_is_the_targets():
    x = tensor(1000)
    func = te.create_prim_func([x, topi.exp(x)])
    narrow = parse_target('{"kind": "opencl", "max_num_threads": 32, "max_threads_per_block": 32}')
    (schedule,) = [rule.apply(func, narrow) for rule in dlight_rules()[-1:]]
    extents = []
    tvm_ffi.structural_walk(schedule.mod["main"].body, (tirx.For, lambda loop: extents.append(int(loop.extent))))
    assert sorted(extents) == [32, 32]


def test_one_thread_each_is_for_one_reduction():
    x = tensor(6, 10)
    assert OneThreadEach().apply(te.create_prim_func([x, topi.nn.softmax(x)]), TARGET) is None
    assert OneThreadEach().apply(te.create_prim_func([x, topi.exp(x)]), TARGET) is None


@pytest.mark.parametrize(
    "build", [lambda x: op.max(x, axis=0), lambda x: op.nn.softmax(op.matmul(x, op.permute_dims(x)))]
)
def test_what_tvm_cannot_lower_is_left_to_the_next_rule(build):
    """A maximum over an unknown size, for which TVM's rules make a schedule without a reducer of TVM's."""
    rows, (x,) = tvm.tirx.Var("n", "int64"), random((37, 64))
    (got,) = smartmem_tvm.compile(module(build, (rows, 64)), "opencl").run(x)
    (expected,) = smartmem_tvm.compile(module(build, (37, 64))).run(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
