# SPDX-License-Identifier: Apache-2.0
"""StoreHalf: which tensors are halves in memory, which are not and why, and that only their rounding is seen."""

import numpy as np
import pytest
from tvm import ir, relax

from helpers import assert_same_results, constant, legal, nodes, op, random, run
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import EliminateLayout, FuseOperators, StoreHalf

TOLERANCE = 3e-3
SHAPE = (6, 8, 16)


def stored(build, *shapes, fuse=True):
    before = legal(build, *shapes)
    if fuse:
        before = FuseOperators()(EliminateLayout()(before))
    after = StoreHalf()(before)
    return before, after


def decisions(mod) -> dict:
    return {entry["tensor"]: entry for entry in read_log(mod) if entry["pass"] == "StoreHalf"}


def reasons(mod) -> set:
    return {entry["reason"] for entry in decisions(mod).values() if "reason" in entry}


def kinds(mod) -> list:
    """Element types of the results of all kernels, in order."""
    return [str(node.kernel.outputs[0].dtype) for node in nodes(mod)]


def attention(x):
    y = op.matmul(x, constant(16, 16))
    return op.nn.softmax(op.matmul(op.nn.softmax(y), op.permute_dims(y, (0, 2, 1))))


NETWORKS = {
    "matmuls": lambda x: op.matmul(op.nn.relu(op.matmul(x, constant(16, 12))), constant(12, 20)),
    "norms": lambda x: op.nn.layer_norm(
        op.matmul(op.nn.layer_norm(x, constant(16), constant(16), axes=[-1]), constant(16, 16)),
        constant(16), constant(16), axes=[-1],
    ),
    "attention": attention,
    "convolutions": lambda x: op.mean(
        op.nn.conv2d(op.nn.max_pool2d(op.nn.conv2d(op.expand_dims(x, 0), constant(4, 6, 3, 3), padding=1), (2, 2)),
                     constant(4, 4, 1, 1)), axis=[2, 3]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_only_rounding_is_seen(name):
    before, after = stored(NETWORKS[name], SHAPE)
    *between, result = kinds(after)
    assert set(between) == {"float16"} and result == "float32"
    (x,) = random(SHAPE)
    (want,), (got,) = run(before, x), run(after, x)
    assert 0 < np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_weights_may_stay_what_they_are():
    """Where a later pass rounds those that are multiplied so."""
    before = FuseOperators()(EliminateLayout()(legal(NETWORKS["matmuls"], SHAPE)))
    after = StoreHalf("bfloat16", weights=False)(before)
    assert kinds(after) == ["bfloat16", "float32"]
    weights = [arg for node in nodes(after) for arg in node.args if isinstance(arg, ir.Constant)]
    assert weights and {str(each.ty.dtype) for each in weights} == {"float32"}


def test_numbers_that_are_halves_stay_what_they_are():
    """Nothing but small integers between the kernels: no rounding at all."""
    before, after = stored(lambda x: op.sum(op.sum(op.floor(x), axis=2), axis=1), SHAPE)
    assert "float16" in kinds(after)
    assert_same_results(before, after, *random(SHAPE), tolerance=0)


def test_a_weight_of_several_readers_is_rounded_once():
    weight = constant(16, 16)
    _, after = stored(lambda x: op.matmul(op.nn.softmax(op.matmul(x, weight)), weight), SHAPE)
    found = [arg for node in nodes(after) for arg in node.args if isinstance(arg, ir.Constant)]
    assert len(found) == 2 and found[0].same_as(found[1]) and str(found[0].ty.dtype) == "float16"
    assert decisions(after)["weight 1 of lv"]["bytes"] == 16 * 16 * 2


def test_masks_stay_float32():
    """-3e38 would be infinite, and a row of nothing else not a number."""
    mask = lambda m: op.multiply(op.subtract(relax.const(1.0), m), relax.const(-3e38))  # noqa: E731
    _, after = stored(lambda x, m: op.nn.relu(op.nn.softmax(op.add(x, mask(m)))), (6, 8), (6, 8), fuse=False)
    assert "a number beyond 65504 goes into it" in reasons(after)
    zeros = np.zeros((6, 8), "float32")
    np.testing.assert_allclose(run(after, zeros, zeros)[0], 1 / 8)
    assert kinds(after) == ["float16", "float32", "float32", "float16", "float32"]


def test_padding_that_a_maximum_never_takes_is_no_mask():
    pool = lambda x: op.nn.max_pool2d(op.expand_dims(x, 0), (3, 3), padding=1)  # noqa: E731
    _, after = stored(lambda x: op.nn.softmax(pool(x)), SHAPE)
    assert kinds(after)[0] == "float16"


@pytest.mark.parametrize("count", [(8, 16), (300, 400)])
def test_the_number_of_elements_of_a_long_row_is_no_number_in_it(count):
    """A mean over 120,000 elements divides by 120,000, which half cannot hold, and is a half nevertheless."""
    shape = (2, *count)
    norm = lambda x: op.subtract(x, op.mean(x, axis=[1, 2], keepdims=True))  # noqa: E731
    before, after = stored(lambda x: op.nn.relu(op.matmul(norm(x), constant(count[1], 16))), shape)
    assert set(kinds(after)[:-1]) == {"float16"} and not reasons(after) - {"it is a result of the function"}
    (x,) = random(shape)
    (want,), (got,) = run(before, x), run(after, x)
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_large_weights_stay_float32():
    _, after = stored(lambda x: op.nn.softmax(op.matmul(x, relax.const(np.full((16, 16), 1e5, "float32")))), SHAPE)
    assert reasons(after) >= {"it has numbers beyond 65504"}


def test_what_becomes_a_position_stays_float32():
    def build(x):
        rounded = op.sum(x, axis=2)
        return op.take(constant(4096, 3), op.astype(rounded, "int64"), axis=0)

    _, after = stored(build, SHAPE, fuse=False)
    assert reasons(after) == {"a reader makes integers of it", "it is a result of the function"}
