# SPDX-License-Identifier: Apache-2.0
"""FoldNormAffine: scale and shift of a layer normalization in the weights after it."""

import numpy as np
import pytest
from tvm import relax

from helpers import assert_same_results, bindings, constant, legalize, module, op, operators, random
from numpy_relax import evaluate
from smartmem_tvm.ir.block import edit_blocks
from smartmem_tvm.transform import FoldNormAffine, RewriteAlgebra
from smartmem_tvm.transform.rewrite.fold_scales.fold_norm_affine import fold_norm_affine


def norm(x, size: int, axes=(-1,)):
    return op.nn.layer_norm(x, constant(size, seed=1), constant(size, seed=2), axes=list(axes))


def folded(build, *shapes) -> list[str]:
    """Fold, the normalization still an operator, and compare by numpy; returns names of the operators that are left."""

    def bare(call):
        size = int(call.ty.shape[-1])
        ones, zeros = relax.const(np.ones(size, "float32")), relax.const(np.zeros(size, "float32"))
        return op.nn.layer_norm(call.args[0], ones, zeros, axes=[-1], epsilon=call.attrs.epsilon)

    before = module(build, *shapes)
    after = edit_blocks(before, lambda block: fold_norm_affine(block, bare))
    assert not after.same_as(before)
    assert operators(FoldNormAffine()(before)) == [n.replace("nn.layer_norm", "call_tir") for n in operators(after)]
    arrays = random(*shapes)
    expected, largest = evaluate(before, *arrays)
    got, _ = evaluate(after, *arrays)
    for mine, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5 * largest)
    return operators(after)


def kept(build, *shapes) -> bool:
    before = module(build, *shapes)
    return operators(FoldNormAffine()(before)) == operators(before)


def test_before_and_after():
    """Compiled by TVM: the normalization has one operand, and the bias holds the shift."""
    weight, bias = constant(6, 4), constant(4, seed=3)
    before = module(lambda x: op.add(op.matmul(norm(x, 6), weight), bias), (5, 6))
    text = before.script()
    after = FoldNormAffine()(before)
    assert before.script() == text
    assert operators(after) == ["call_tir", "matmul", "add"]
    call, matmul, add = (b.value for b in bindings(after))
    assert len(call.args[1].fields) == 1
    gamma, beta = constant(6, seed=1).value.numpy(), constant(6, seed=2).value.numpy()
    np.testing.assert_allclose(matmul.args[1].value.numpy(), gamma[:, None] * weight.value.numpy(), rtol=1e-6)
    np.testing.assert_allclose(add.args[1].value.numpy(), bias.value.numpy() + beta @ weight.value.numpy(), rtol=1e-5)
    assert_same_results(legalize(before), legalize(after), *random((5, 6)))


def test_all_readers_take_it():
    def body(x):
        y = norm(x, 6)
        return op.add(op.matmul(y, constant(6, 4)), constant(4)), op.nn.relu(op.matmul(y, constant(6, 5)))

    assert sorted(folded(body, (5, 6))) == ["add", "add", "matmul", "matmul", "nn.layer_norm", "nn.relu"]


def test_a_layer_without_bias_gets_one():
    assert folded(lambda x: op.matmul(norm(x, 6), constant(6, 4)), (2, 5, 6)) == ["nn.layer_norm", "matmul", "add"]


def test_a_bias_that_is_no_vector_stays_and_gets_company():
    body = lambda x: op.add(op.matmul(norm(x, 6), constant(6, 4)), constant(5, 4))  # noqa: E731
    assert folded(body, (5, 6)) == ["nn.layer_norm", "matmul", "add", "add"]


def test_through_a_window_partition():
    """Swin: rolled by two slices and a concatenation, then cut into windows."""

    def body(x):
        y = op.reshape(norm(x, 6), (4, 4, 6))
        rolled = op.concat([op.strided_slice(y, [0], [1], [4]), op.strided_slice(y, [0], [0], [1])], 0)
        windows = op.permute_dims(op.reshape(rolled, (2, 2, 2, 2, 6)), [0, 2, 1, 3, 4])
        return op.matmul(op.reshape(windows, (4, 4, 6)), constant(6, 5))

    assert "nn.layer_norm" in folded(body, (16, 6))


def test_patch_merging():
    """Swin: four neighbours side by side are one row of the next matmul."""

    def body(x):
        y = op.reshape(norm(x, 6), (2, 2, 2, 2, 6))
        return op.matmul(op.reshape(op.permute_dims(y, [0, 2, 1, 3, 4]), (4, 24)), constant(24, 5))

    assert folded(body, (16, 6))[-1] == "add"


def test_into_a_convolution_without_padding():
    """ConvNeXt's downsampling, after a transpose to channels first."""

    def body(x, padding=0):
        y = op.permute_dims(norm(x, 6), [0, 3, 1, 2])
        return op.add(op.nn.conv2d(y, constant(4, 6, 2, 2), strides=2, padding=padding), constant(1, 4, 1, 1))

    assert folded(body, (1, 4, 4, 6)) == ["nn.layer_norm", "permute_dims", "nn.conv2d", "add"]


def test_square_matrices_are_scaled_by_rows():
    assert folded(lambda x: op.matmul(norm(x, 6), constant(6, 6)), (6, 6)) == ["nn.layer_norm", "matmul", "add"]


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_grouped_convolutions(groups):
    def body(x):
        y = op.permute_dims(norm(x, 6), [0, 3, 1, 2])
        return op.nn.conv2d(y, constant(6, 6 // groups, 2, 2), groups=groups)

    assert folded(body, (1, 4, 4, 6)) == ["nn.layer_norm", "permute_dims", "nn.conv2d", "add"]


def test_the_zeros_of_a_padding_would_be_shifted():
    def body(x):
        y = op.permute_dims(norm(x, 6), [0, 3, 1, 2])
        return op.nn.conv2d(y, constant(4, 6, 3, 3), padding=1)

    assert kept(body, (1, 4, 4, 6))


def test_a_residual_reads_it():
    """BERT normalizes after the residual."""
    assert kept(lambda x: op.add(norm(x, 6), op.matmul(norm(x, 6), constant(6, 6))), (5, 6))


def test_a_result_of_the_function():
    def body(x):
        y = norm(x, 6)
        return y, op.matmul(y, constant(6, 4))

    assert kept(body, (5, 6))


def test_half_of_it_is_concatenated_with_something_else():
    def body(x, z):
        return op.matmul(op.concat([norm(x, 6), z], 0), constant(6, 4))

    assert kept(body, (5, 6), (2, 6))


def test_two_normalizations_concatenated():
    """Each would need weights of its own."""

    def body(x, z):
        other = op.nn.layer_norm(z, constant(6, seed=8), constant(6, seed=9), axes=[-1])
        return op.matmul(op.concat([norm(x, 6), other], 0), constant(6, 4))

    assert kept(body, (5, 6), (2, 6))


def test_the_matrix_is_the_left_operand():
    assert kept(lambda x: op.matmul(constant(4, 5), norm(x, 6)), (5, 6))


def test_activations_on_both_sides():
    def body(x):
        y = norm(x, 6)
        return op.matmul(y, op.permute_dims(y))

    assert kept(body, (5, 6))


def test_other_axes():
    def body(x):
        scale, shift = constant(5, 6), constant(5, 6, seed=2)
        return op.matmul(op.nn.layer_norm(x, scale, shift, axes=[-2, -1]), constant(6, 4))

    assert kept(body, (5, 6))


def test_scale_and_shift_that_are_arguments():
    body = lambda x, g, b: op.matmul(op.nn.layer_norm(x, g, b, axes=[-1]), constant(6, 4))  # noqa: E731
    assert kept(body, (5, 6), (6,), (6,))


def test_two_biases_become_one():
    """The shift of a layer that reads a bias of another shape is added to it by the rules."""
    body = lambda x: op.add(op.matmul(norm(x, 6), constant(6, 4)), constant(1, 4))  # noqa: E731
    assert operators(RewriteAlgebra()(FoldNormAffine()(module(body, (5, 6))))) == ["call_tir", "matmul", "add"]
