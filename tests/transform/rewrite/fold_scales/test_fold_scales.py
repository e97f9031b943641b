# SPDX-License-Identifier: Apache-2.0
"""FoldScales: constant factors that move into weights, and those that must not."""

import numpy as np
import pytest
import tvm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tvm import ir, relax

from helpers import assert_same_results, bindings, constant, module, op, operators, random
from numpy_relax import evaluate
from smartmem_tvm.transform import FoldScales, RewriteAlgebra


def folded(build, *shapes, dtype="float32") -> list[str]:
    """Run the pass, compare results; returns names of the operators that are left."""
    before = module(build, *shapes, dtype=dtype)
    text = before.script()
    after = FoldScales()(before)
    assert before.script() == text
    assert_close(before, after, *random(*shapes, dtype=dtype))
    return operators(after)


def assert_close(before, after, *arrays) -> None:
    expected, largest = evaluate(before, *arrays)
    got, _ = evaluate(after, *arrays)
    for mine, reference in zip(got, expected, strict=True):
        assert mine.shape == reference.shape
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5 * largest)


def kept(build, *shapes, dtype="float32") -> bool:
    """Whether the pass leaves a module alone."""
    before = module(build, *shapes, dtype=dtype)
    return operators(FoldScales()(before)) == operators(before)


def half():
    return relax.const(0.5)


def positive(*shape, seed=3):
    return relax.const(np.abs(random(shape, seed=seed)[0]) + 0.5)


# --- back into the weights before


def test_before_and_after():
    weight, bias = constant(6, 4), constant(4, seed=1)
    before = module(lambda x: op.multiply(op.add(op.matmul(x, weight), bias), half()), (5, 6))
    after = FoldScales()(before)
    matmul, add = (b.value for b in bindings(after) if isinstance(b.value, ir.Call))
    np.testing.assert_array_equal(matmul.args[1].value.numpy(), weight.value.numpy() / 2)
    np.testing.assert_array_equal(add.args[1].value.numpy(), bias.value.numpy() / 2)


def test_a_factor_for_each_column():
    """ConvNeXt's layer scale."""
    body = lambda x: op.multiply(positive(4), op.add(op.matmul(x, constant(6, 4)), constant(4)))  # noqa: E731
    assert folded(body, (2, 5, 6)) == ["matmul", "add"]


def test_division():
    assert folded(lambda x: op.divide(op.matmul(x, constant(6, 4)), positive(4)), (5, 6)) == ["matmul"]


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions(groups):
    """Plain, grouped and depth-wise."""

    def body(x):
        y = op.nn.conv2d(x, constant(6, 6 // groups, 3, 3), padding=1, groups=groups)
        return op.multiply(op.add(y, constant(1, 6, 1, 1)), positive(1, 6, 1, 1))

    assert folded(body, (2, 6, 5, 7)) == ["nn.conv2d", "add"]


def test_batch_normalization():
    """As the torch front end gives it: all that is left is the convolution and one bias."""

    def body(x):
        y = op.nn.conv2d(x, constant(6, 4, 3, 3), padding=1)
        norm = op.nn.batch_norm(y, positive(6), constant(6), constant(6, seed=5), positive(6), axis=1, training=False)
        return op.nn.relu(relax.TupleGetItem(relax.BlockBuilder.current().emit(norm), 0))

    t = relax.transform
    passes = [t.DecomposeOpsForInference(), t.CanonicalizeBindings(), t.FoldConstant(), t.DeadCodeElimination()]
    before = tvm.transform.Sequential(passes)(module(body, (1, 4, 5, 5)))
    after = RewriteAlgebra()(FoldScales()(before))
    assert operators(after) == ["nn.conv2d", "add", "nn.relu"]
    assert_close(before, after, *random((1, 4, 5, 5)))


def test_the_scale_of_attention():
    """Through the product with the keys, the split of heads and the choice of one of three projections."""

    def body(x):
        heads = op.permute_dims(
            op.reshape(op.add(op.matmul(x, constant(6, 18)), constant(18)), (5, 3, 2, 3)), [1, 2, 0, 3]
        )
        q, k, v = (op.squeeze(op.strided_slice(heads, [0], [i], [i + 1]), [0]) for i in range(3))
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), half())
        return op.matmul(op.nn.softmax(scores), v)

    assert "multiply" not in folded(body, (5, 6))
    before = module(body, (5, 6))
    assert_same_results(before, FoldScales()(before), *random((5, 6)))


def test_queries_and_keys_scaled_apart():
    """Each its own columns of the merged weight."""

    def body(x):
        q, k = (relax.BlockBuilder.current().emit(each) for each in _split(op.matmul(x, constant(6, 8)), 2))
        q, k = op.multiply(q, half()), op.multiply(k, positive(4))
        return op.matmul(q, op.permute_dims(k))

    assert "multiply" not in folded(body, (5, 6))


def _split(value, parts: int) -> list:
    fields = relax.BlockBuilder.current().emit(op.split(value, parts, axis=-1))
    return [relax.TupleGetItem(fields, i) for i in range(parts)]


def test_a_square_matrix_is_scaled_by_columns():
    """By rows would have the same shape."""
    assert folded(lambda x: op.multiply(op.matmul(x, constant(5, 5)), positive(5)), (5, 5)) == ["matmul"]
    assert kept(lambda x: op.multiply(op.matmul(x, constant(5, 5)), positive(5, 1)), (5, 5))


def test_a_transposed_factor():
    body = lambda x: op.multiply(op.permute_dims(op.matmul(x, constant(5, 5))), positive(5, 1))  # noqa: E731
    assert folded(body, (5, 5)) == ["matmul", "permute_dims"]


def test_a_reshape_that_mixes_the_channels_stops_it():
    body = lambda x: op.multiply(op.reshape(op.matmul(x, constant(6, 4)), (4, 5)), positive(5))  # noqa: E731
    assert kept(body, (5, 6))


def test_a_reshape_that_splits_the_channels_does_not():
    body = lambda x: op.multiply(op.reshape(op.matmul(x, constant(6, 4)), (5, 2, 2)), positive(2, 2))  # noqa: E731
    assert folded(body, (5, 6)) == ["matmul", "reshape"]


def test_a_constant_does_not_grow_over_a_reshape():
    """A normalisation of groups has a factor for each channel behind one for all: 3 numbers there are 15 before."""
    body = lambda x: op.multiply(op.reshape(op.multiply(x, half()), (2, 3, 5)), positive(3, 1))  # noqa: E731
    assert kept(body, (2, 15))


def test_both_summands_are_scaled():
    body = lambda x, y: op.multiply(op.add(op.matmul(x, constant(6, 4)), op.matmul(y, constant(3, 4))), half())  # noqa: E731
    assert folded(body, (5, 6), (5, 3)) == ["matmul", "matmul", "add"]


def test_one_summand_without_weights_stops_it():
    assert kept(lambda x, y: op.multiply(op.add(op.matmul(x, constant(6, 4)), y), half()), (5, 6), (5, 4))


def test_relu_keeps_positive_factors_only():
    assert folded(lambda x: op.multiply(op.nn.relu(op.matmul(x, constant(6, 4))), half()), (5, 6)) == [
        "matmul",
        "nn.relu",
    ]
    assert kept(lambda x: op.multiply(op.nn.relu(op.matmul(x, constant(6, 4))), relax.const(-0.5)), (5, 6))


# --- forward into the weights after


def test_forward_into_all_readers():
    def body(x):
        y = op.multiply(op.nn.softmax(x), positive(6))
        return op.matmul(y, constant(6, 4)), op.matmul(op.permute_dims(op.permute_dims(y)), constant(6, 3))

    assert "multiply" not in folded(body, (5, 6))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_forward_into_convolutions(groups):
    """Zeros of the padding stay zeros."""

    def body(x):
        y = op.multiply(op.nn.softmax(x), positive(1, 6, 1, 1))
        return op.nn.conv2d(y, constant(6, 6 // groups, 3, 3), padding=1, groups=groups)

    assert folded(body, (2, 6, 5, 7)) == ["nn.softmax", "nn.conv2d"]


def test_hard_swish():
    """The division by six goes into the next convolution."""

    def body(x):
        gate = op.divide(op.clip(op.add(x, relax.const(3.0)), 0, 6), relax.const(6.0))
        return op.nn.conv2d(op.multiply(x, gate), constant(4, 6, 1, 1))

    assert folded(body, (1, 6, 5, 7)) == ["add", "clip", "multiply", "nn.conv2d"]


def test_forward_not_if_one_reader_has_no_weights():
    def body(x):
        y = op.multiply(op.nn.softmax(x), positive(6))
        return op.matmul(y, constant(6, 4)), op.nn.relu(y)

    assert kept(body, (5, 6))


def test_forward_not_along_the_rows():
    assert kept(lambda x: op.matmul(op.multiply(op.nn.softmax(x), positive(6, 1)), constant(6, 6)), (6, 6))


# --- refused


def test_a_tensor_with_another_reader():
    def body(x):
        y = op.matmul(x, constant(6, 4))
        return op.multiply(y, half()), op.nn.relu(y)

    assert kept(body, (5, 6))


def test_a_tensor_that_is_a_result():
    def body(x):
        y = op.matmul(x, constant(6, 4))
        return y, op.multiply(y, half())

    assert kept(body, (5, 6))


def test_parts_that_overlap():
    def body(x):
        y = op.matmul(x, constant(6, 4))
        return op.multiply(op.strided_slice(y, [1], [0], [3]), half()), op.strided_slice(y, [1], [2], [4])

    assert kept(body, (5, 6))


def test_a_factor_that_broadcasts():
    assert kept(lambda x: op.multiply(op.matmul(x, constant(6, 4)), positive(3, 1, 1)), (5, 6))


def test_division_by_zero():
    zero = relax.const(np.array([1, 0, 1, 1], "float32"))
    assert kept(lambda x: op.divide(op.matmul(x, constant(6, 4)), zero), (5, 6))


def test_weights_that_are_arguments():
    assert kept(lambda x, w: op.multiply(op.matmul(x, w), positive(4)), (5, 6), (6, 4))


def test_integers():
    weight = relax.const(np.ones((6, 4), "int32"))
    assert kept(lambda x: op.multiply(op.matmul(x, weight), relax.const(2, "int32")), (5, 6), dtype="int32")


# --- at random


@st.composite
def layouts(draw):
    """A linear layer, reshapes and transposes, and the shape of a factor after them."""
    shape = [draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(draw(st.integers(2, 4)))]
    steps, current = [], list(shape)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            axes = draw(st.permutations(range(len(current))))
            steps.append(("permute_dims", list(axes)))
            current = [current[axis] for axis in axes]
        else:
            at = draw(st.integers(0, len(current) - 1))
            divisor = draw(st.sampled_from([d for d in (1, 2, 3) if current[at] % d == 0]))
            current = current[:at] + [divisor, current[at] // divisor] + current[at + 1 :]
            steps.append(("reshape", list(current)))
    factor = [n if draw(st.booleans()) else 1 for n in current]
    return shape, steps, factor


@settings(max_examples=20)
@given(layouts())
def test_random_layouts(case):
    """Folded or not, the result is the same; a single number always folds."""
    shape, steps, factor = case
    assume(shape[-1] > 0)

    def body(x):
        y = op.matmul(x, constant(3, shape[-1]))
        for name, argument in steps:
            y = getattr(op, name)(y, argument)
        return op.multiply(y, positive(*factor))

    before = module(body, (*shape[:-1], 3))
    after = FoldScales()(before)
    assert_close(before, after, *random((*shape[:-1], 3)))
    if np.prod(factor) == 1:
        assert "multiply" not in operators(after)


@pytest.mark.parametrize("square", [op.matmul, op.multiply, op.add])
def test_a_tensor_that_is_read_twice_by_one_operator(square):
    """Half of a product of y with itself is no product of halves."""

    def body(x):
        y = op.multiply(x, half())
        return op.multiply(square(y, y), half())

    mod = module(body, (4, 4))
    assert_close(mod, FoldScales()(mod), *random((4, 4)))


def test_a_scalar_stays_one():
    body = lambda x, y: op.multiply(op.reshape(op.multiply(op.matmul(x, y), half()), (1,)), positive(1))  # noqa: E731
    assert folded(body, (5,), (5,)) == ["matmul", "multiply", "reshape"]
