# SPDX-License-Identifier: Apache-2.0
"""WidenSums: the sum of many halves, by each operator that adds up."""

import numpy as np
import pytest
from tvm import ir, relax

import smartmem_tvm
from helpers import bindings, module, op
from smartmem_tvm.transform import WidenSums

X = (np.random.default_rng(0).random((3, 4000)) + 0.5).astype("float16")
W = np.random.default_rng(1).random((4000, 5)).astype("float16")
IMAGE, KERNEL = X.reshape(1, 30, 20, 20), np.random.default_rng(2).random((2, 30, 16, 16)).astype("float16")
LINE, VOLUME = X.reshape(1, 30, 400), X.reshape(1, 3, 10, 20, 20)


def wide(*arrays):
    return [each.astype("float64") for each in arrays]


def correlated(image, kernel):
    windows = np.lib.stride_tricks.sliding_window_view(image[0], (16, 16), axis=(1, 2))
    return np.einsum("cyxhw,ochw->oyx", windows, kernel)[None]


def softmax(x):
    shifted = np.exp(x - x.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


CASES = {
    "matmul": (op.matmul, [X, W], np.matmul),
    "einsum": (lambda a, b: op.einsum((a, b), "ij,jk->ki"), [X, W], lambda a, b: (a @ b).T),
    "sum": (lambda x: op.sum(x, 1), [X], lambda x: x.sum(1)),
    "mean": (lambda x: op.mean(x, 1), [X], lambda x: x.mean(1)),
    "variance": (lambda x: op.variance(x, 1), [X], lambda x: x.var(1)),
    "cumsum": (lambda x: op.cumsum(x, 1), [X], lambda x: x.cumsum(1)),
    "softmax": (op.nn.softmax, [X], softmax),
    "convolution": (op.nn.conv2d, [IMAGE, KERNEL], correlated),
    "pool": (lambda x: op.nn.avg_pool2d(x, (20, 20)), [IMAGE], lambda x: x.mean((2, 3), keepdims=True)),
    "pool of a line": (lambda x: op.nn.avg_pool1d(x, 400), [LINE], lambda x: x.mean(2, keepdims=True)),
    "pool of a volume": (
        lambda x: op.nn.avg_pool3d(x, (10, 20, 20)),
        [VOLUME],
        lambda x: x.mean((2, 3, 4), keepdims=True),
    ),
}


@pytest.mark.each_value
@pytest.mark.parametrize("build, arrays, right", CASES.values(), ids=CASES)
@pytest.mark.parametrize("schedule", [True, False])
def test_a_sum_of_halves_is_rounded_once(build, arrays, right, schedule):
    mod = module(build, *((each.shape, "float16") for each in arrays))
    (got,) = smartmem_tvm.compile(mod, options=smartmem_tvm.Options(schedule=schedule)).run(*arrays)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype("float64"), right(*wide(*arrays)), rtol=1.5e-3, atol=1e-7)


def kinds(mod) -> list[str]:
    return [str(each.value.op.name) for each in bindings(mod) if isinstance(each.value, ir.Call)]


def test_products_read_halves():
    """Weights stay halves in memory."""
    mod = WidenSums()(module(op.matmul, ((3, 4), "float16"), ((4, 5), "float16")))
    assert kinds(mod) == ["relax.matmul", "relax.astype"]


@pytest.mark.parametrize("groups", [1, 2])
def test_attributes_of_convolutions_are_kept(groups):
    build = lambda x, w: op.nn.conv2d(x, w, (2, 1), (1, 0), (1, 2), groups)  # noqa: E731
    shapes = ((1, 4, 9, 9), "float16"), ((6, 4 // groups, 3, 2), "float16")
    before, after = module(build, *shapes), WidenSums()(module(build, *shapes))
    call = bindings(after)[0].value
    assert str(call.attrs.out_dtype) == "float32" and int(call.attrs.groups) == groups
    assert [int(n) for n in call.ty.shape] == [int(n) for n in bindings(before)[0].value.ty.shape]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_other_types_are_left_alone(dtype):
    assert kinds(WidenSums()(module(lambda x: op.sum(x, 1), ((3, 4), dtype)))) == ["relax.sum"]


def test_maxima_are_left_alone():
    assert kinds(WidenSums()(module(lambda x: op.max(op.nn.max_pool1d(x), 1), ((3, 4, 5), "float16")))) == [
        "relax.nn.max_pool1d",
        "relax.max",
    ]


def test_a_symbolic_length():
    from tvm import tirx

    n = tirx.Var("n", "int64")
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((n, 4), "float16"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.mean(x, 0)))
    assert kinds(WidenSums()(builder.get())) == ["relax.astype", "relax.mean", "relax.astype"]
