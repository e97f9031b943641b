# SPDX-License-Identifier: Apache-2.0
"""FuseOperators: what rides along with what, what must not, and the reasons given."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax

from helpers import assert_same_results, calls, constant, legal, nodes, op, random, run
from smartmem_tvm.analysis.classify import reduces
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.schedule.price import Prices
from smartmem_tvm.transform import EliminateLayout, FuseOperators


def fused(mod):
    return FuseOperators()(EliminateLayout()(mod))


def check(build, *shapes, kernels: int, tolerance=1e-5):
    """Eliminate and fuse, count kernels, compare results; returns the new module."""
    before = legal(build, *shapes)
    after = fused(before)
    assert len(calls(after)) == kernels
    assert_same_results(before, after, *random(*shapes), tolerance=tolerance)
    return after


def reasons(mod) -> dict:
    """Operator name -> (action, reason)."""
    entries = [e for e in read_log(mod) if e["pass"] == "FuseOperators"]
    return {e["operator"].split(" ")[0]: (e["action"], e["reason"]) for e in entries}


# --- behind a reduction -------------------------------------------------------------------------------------------


def test_matmul_bias_gelu_residual():
    def build(x, w, residual):
        return op.add(op.nn.gelu(op.add(op.matmul(x, w), constant(8))), residual)

    after = check(build, (5, 6), (6, 8), (5, 8), kernels=1)
    (node,) = nodes(after)
    assert [m.split(" ")[0].rstrip("0123456789") for m in node.members] == ["matmul", "add", "gelu", "add"]
    assert len(node.kernel.stages) == 2, "the reduction, and one stage with all the rest"


def test_convolution_with_its_epilogue():
    def build(x, w):
        y = op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), constant(1, 4, 1, 1)))
        return op.multiply(y, constant(1, 4, 1, 1))

    check(build, (1, 3, 6, 6), (4, 3, 3, 3), kernels=1)


def test_pooling_and_mean_with_their_epilogues():
    check(lambda x: op.sqrt(op.abs(op.mean(x, axis=1))), (5, 6), kernels=1)
    check(lambda x: op.nn.relu(op.nn.max_pool2d(x, (2, 2), (2, 2))), (1, 2, 6, 6), kernels=1)


@pytest.mark.parametrize("normalise", ["softmax", "layer_norm", "rms_norm"])
def test_normalisations_are_one_kernel_with_their_neighbours(normalise):
    """A cheap operator in front, a layout operator on each side, an epilogue behind."""
    calls_ = {
        "softmax": lambda x: op.nn.softmax(x),
        "layer_norm": lambda x: op.nn.layer_norm(x, constant(6), constant(6), axes=[-1]),
        "rms_norm": lambda x: op.nn.rms_norm(x, constant(6), axes=[-1]),
    }

    def build(x, mask):
        x = op.add(op.multiply(op.permute_dims(x), relax.const(0.25)), mask)
        y = calls_[normalise](x)
        return op.permute_dims(op.nn.relu(y))

    check(build, (6, 5), (5, 6), kernels=1)


def test_attention_is_four_kernels():
    """Two batched matmuls, one softmax and the output projection; scale, mask, bias and residual ride along."""
    batch, tokens, heads, width = 2, 5, 3, 4
    size = heads * width

    def build(qkv, mask, w, residual):
        parts = op.permute_dims(op.reshape(qkv, (batch, tokens, 3, heads, width)), (2, 0, 3, 1, 4))
        q, k, v = (op.squeeze(op.strided_slice(parts, [0], [i], [i + 1]), 0) for i in range(3))
        scores = op.matmul(op.multiply(q, relax.const(0.5)), op.permute_dims(k, (0, 1, 3, 2)))
        mixed = op.matmul(op.nn.softmax(op.add(scores, mask)), v)
        merged = op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), (batch, tokens, size))
        return op.add(op.add(op.matmul(merged, w), constant(size)), residual)

    shapes = (batch, tokens, 3 * size), (tokens, tokens), (size, size), (batch, tokens, size)
    after = check(build, *shapes, kernels=4)
    assert all(reduces(node.kernel) for node in nodes(after))


def test_the_producer_writes_through_the_inverse_map():
    """Window reverse, then the residual: the matmul runs over the windows in the order of the image."""

    def build(x, w, residual):
        y = op.reshape(op.matmul(x, w), (2, 2, 4, 4, 3))
        y = op.reshape(op.permute_dims(y, (0, 2, 1, 3, 4)), (8, 8, 3))
        return op.add(y, residual)

    after = check(build, (4, 16, 5), (5, 3), (8, 8, 3), kernels=1)
    (node,) = nodes(after)
    matmul, add = node.kernel.stages
    assert [matmul.extents[v] for v in matmul.spatial] == [8, 8, 3]
    assert add.is_pointwise


def test_a_result_is_written_in_its_own_order():
    """A transposed result of a matmul needs no copy."""
    after = check(lambda x, w: op.permute_dims(op.matmul(x, w)), (5, 6), (6, 7), kernels=1)
    assert reduces(nodes(after)[0].kernel)


def test_a_rolled_result_is_written_in_its_own_order():
    def build(x, w):
        y = op.matmul(x, w)
        return op.concat([op.strided_slice(y, [0], [3], [8]), op.strided_slice(y, [0], [0], [3])], 0)

    check(build, (8, 6), (6, 7), kernels=1)


# --- what must not be computed again ------------------------------------------------------------------------------


def matmuls(mod) -> int:
    """Reductions over all kernels: none may be computed twice."""
    return sum(bool(stage.reduction) for node in nodes(mod) for stage in node.kernel.stages)


def test_a_reduction_with_two_readers_is_computed_once():
    def build(x, w):
        y = op.matmul(x, w)
        return op.nn.relu(y), op.negative(y)

    after = check(build, (5, 6), (6, 7), kernels=3)
    assert matmuls(after) == 1


def test_a_reduction_that_is_a_result_is_computed_once():
    def build(x, w):
        y = op.matmul(x, w)
        return y, op.nn.relu(y)

    after = check(build, (5, 6), (6, 7), kernels=2)
    assert matmuls(after) == 1


def test_a_reduction_read_by_broadcast_is_computed_once():
    """Each element is read eight times: as a second stage it would be summed eight times."""

    def build(x, y):
        return op.add(op.broadcast_to(op.reshape(op.sum(x, axis=1), (5, 1)), (5, 8)), y)

    after = check(build, (5, 64), (5, 8), kernels=2)
    assert matmuls(after) == 1


def test_a_reduction_read_in_two_ways_is_computed_once():
    def build(x, w):
        y = op.matmul(x, w)
        return op.add(y, op.permute_dims(y))

    after = check(build, (6, 5), (5, 6), kernels=2)
    assert matmuls(after) == 1


def test_a_part_of_a_reduction():
    """The epilogue reads half of the elements, each once; the rest need not be computed."""

    def build(x, w):
        return op.nn.relu(op.strided_slice(op.matmul(x, w), [1], [0], [4]))

    after = check(build, (5, 6), (6, 8), kernels=1)
    matmul, _ = nodes(after)[0].kernel.stages
    assert [matmul.extents[v] for v in matmul.spatial] == [5, 4]


def test_an_expensive_value_is_not_evaluated_inside_a_reduction():
    """exp inside of the matmul would be evaluated once per column of the result."""
    after = check(lambda x, w: op.matmul(op.exp(x), w), (5, 6), (6, 7), kernels=2)
    action, reason = reasons(after)["tir_exp"]
    assert action == "kept"
    assert "7 times" in reason


def test_an_expensive_value_rides_along_where_it_is_evaluated_once():
    check(lambda x: op.sum(op.exp(x), axis=1), (5, 6), kernels=1)


def test_an_expensive_value_with_two_readers_is_stored():
    def build(x, w):
        y = op.exp(x)
        return op.sum(y, axis=1), op.matmul(y, w)

    after = check(build, (5, 6), (6, 7), kernels=3)
    assert reasons(after)["tir_exp"][0] == "kept"


def test_an_expensive_value_that_two_readers_evaluate_once_each_is_stored():
    after = check(lambda x: (op.sum(op.exp(x), axis=0), op.sum(op.exp(x), axis=1)), (5, 6), kernels=3)
    assert reasons(after)["tir_exp"][0] == "kept"


def test_an_expensive_value_whose_readers_become_one_kernel_rides_along():
    """y * sigmoid(y): exp has two readers until sigmoid has joined the product."""

    def build(x):
        y = op.exp(x)
        return op.multiply(y, op.sigmoid(y))

    check(build, (5, 6), kernels=1)


def test_an_expensive_value_read_in_two_ways_is_stored():
    """One reader, but two elements of the value for each of its own."""
    after = check(lambda x: op.add(op.exp(x), op.permute_dims(op.exp(x))), (5, 5), kernels=2)
    assert reasons(after)["tir_exp"][0] == "kept"


def test_a_cheap_value_is_computed_in_each_reader():
    def build(x, w):
        y = op.add(x, constant(6))
        return op.matmul(y, w), op.sum(y, axis=1)

    after = check(build, (5, 6), (6, 7), kernels=2)
    assert reasons(after)["add"][0] == "fused"


def test_a_cheap_value_of_many_operands_is_stored_when_that_moves_fewer_bytes():
    """Three readers of a sum of four large tensors: 12 tensors read, against 4 read, 1 written, 3 read."""
    shape = (256, 256)

    def build(a, b, c, d):
        y = op.add(op.add(a, b), op.add(c, d))
        return op.sum(y, axis=0), op.sum(y, axis=1), op.max(y, axis=1)

    after = check(build, shape, shape, shape, shape, kernels=4, tolerance=1e-3)
    kept = [entry["reason"] for entry in read_log(after) if entry["action"] == "kept"]
    assert any("moves more bytes" in reason for reason in kept)


# --- pointwise chains ---------------------------------------------------------------------------------------------


def test_a_pointwise_chain_is_one_kernel():
    check(lambda x, y: op.nn.relu(op.subtract(op.multiply(op.sqrt(op.abs(x)), y), x)), (5, 6), (5, 6), kernels=1)


def test_a_diamond_is_one_kernel_and_no_cycle():
    """Both arms come from one matmul and meet again."""

    def build(x, w):
        y = op.matmul(x, w)
        return op.add(op.nn.relu(y), op.negative(y))

    after = check(build, (5, 6), (6, 7), kernels=1)
    assert matmuls(after) == 1


def test_an_arm_through_another_reduction_makes_no_cycle():
    """add reads the matmul directly and through a softmax: fused with both, it would have to wait for itself."""

    def build(x, w):
        y = op.matmul(x, w)
        return op.add(y, op.nn.softmax(y))

    after = check(build, (5, 6), (6, 7), kernels=2)
    order = [node.var for node in nodes(after)]
    for position, node in enumerate(nodes(after)):
        assert all(arg not in order[position:] for arg in node.operands)


def test_results_keep_their_order_and_values():
    def build(x):
        y = op.exp(x)
        z = op.negative(y)
        return z, y, op.add(y, z)

    after = check(build, (5, 6), kernels=3)
    assert [binding.name for binding in after["main"].body.body.fields] == [
        binding.name for binding in legal(build, (5, 6))["main"].body.body.fields
    ]
    assert reasons(after)["tir_exp"] == ("kept", "it is a result of the function")


def test_an_opaque_reader_keeps_its_operand():
    after = fused(legal(lambda x: op.sort(op.negative(x)), (5, 6)))
    action, reason = reasons(after)["tir_negative"]
    assert action == "kept"
    assert "no functional form" in reason


def test_two_matmuls_stay_two_kernels():
    """Many-to-Many then Many-to-Many: a red cell of DNNFusion's table."""
    check(lambda x, v, w: op.matmul(op.matmul(x, v), w), (5, 6), (6, 7), (7, 8), kernels=2)


def test_a_broadcasting_value_is_never_put_in_front_of_a_matmul():
    """One-to-Many then Many-to-Many: the other red cell. The same value with constants is One-to-One and goes in."""
    never = check(lambda x, y, w: op.matmul(op.add(x, y), w), (5, 6), (6,), (6, 7), kernels=2)
    action, reason = reasons(never)["add"]
    assert action == "kept"
    assert reason == "One-to-Many then Many-to-Many never pays (DNNFusion Table 3)"
    check(lambda x, w: op.matmul(op.add(x, constant(6)), w), (5, 6), (6, 7), kernels=1)


READERS = {
    "product": (lambda x, w: op.matmul(x, w), (5, 6), (6, 7)),
    "square product": (lambda x, w: op.matmul(x, w), (5, 5), (5, 5)),
    "row": (lambda x, w: op.matmul(x, w), (1, 6), (6, 1)),
    "window": (lambda x, w: op.nn.conv1d(x, w, padding=(2, 1), dilation=(2,)), (1, 3, 11), (4, 3, 3)),
    "window of one": (lambda x, w: op.nn.conv2d(x, w), (1, 3, 5, 5), (4, 3, 1, 1)),
    "channels": (lambda x, w: op.nn.conv2d(x, w, padding=(1, 1), groups=3), (1, 3, 7, 5), (3, 1, 3, 3)),
    "strides": (lambda x, w: op.nn.conv2d(x, w, strides=(2, 3), padding=(1, 0, 2, 1)), (2, 2, 7, 5), (4, 2, 3, 3)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("seed", range(2))
def test_an_operand_of_one_number_goes_in_front_of_a_reduction(name, seed):
    """A scale, or a length, that is known at run time only, with each number of dimensions and on both sides."""
    (build, *shapes), drawn = READERS[name], np.random.default_rng([seed, len(name)])
    scalar = ((), (1,), (1, 1))[int(drawn.integers(3))]
    operator = (op.multiply, op.subtract, op.maximum)[int(drawn.integers(3))]

    def scaled(x, w, s):
        return build(operator(*((x, s) if drawn.random() < 0.5 else (s, x))), w)

    check(scaled, *shapes, scalar, kernels=1)


def test_a_matmul_is_ended_by_an_operator_that_reads_its_other_operand_twice():
    """Each way of reading it is one to one, and so is the difference."""

    def build(x, w, z):
        return op.add(op.matmul(x, w), op.subtract(z, op.permute_dims(z)))

    check(build, (5, 6), (6, 5), (5, 5), kernels=1)


def test_a_matmul_is_not_ended_by_a_many_to_many_operator():
    """Interpolation reads each element of its operand for several results: a red cell again."""

    def build(x, w):
        return op.image.resize2d(op.reshape(op.matmul(x, w), (1, 1, 4, 4)), (8, 8), method="linear")

    check(build, (4, 6), (6, 4), kernels=2)


def test_every_pointwise_operator_has_a_reason():
    def build(x, w):
        y = op.matmul(op.exp(x), w)
        return op.nn.relu(op.add(y, constant(7)))

    after = fused(legal(build, (5, 6), (6, 7)))
    log = [e for e in read_log(after) if e["pass"] == "FuseOperators"]
    assert {e["operator"].split(" ")[0] for e in log} == {"tir_exp", "add", "relu"}
    assert all(e["reason"] and e["action"] in ("fused", "kept") for e in log)


def test_fusion_alone_takes_layout_operators_along():
    """Without EliminateLayout in front, the pass still composes what it fuses."""
    before = legal(lambda x, w: op.nn.relu(op.permute_dims(op.matmul(x, w))), (5, 6), (6, 7))
    after = FuseOperators()(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((5, 6), (6, 7)))


def test_running_twice_changes_nothing_more():
    def build(x, w, residual):
        return op.add(op.nn.gelu(op.matmul(op.permute_dims(x), w)), residual)

    once = fused(legal(build, (6, 5), (6, 8), (5, 8)))
    ir.assert_structural_equal(FuseOperators()(once)["main"], once["main"])


def test_no_layout_kernel_is_left_between_reductions():
    """A block of a Swin layer, window partition and reverse included."""
    norm = lambda x: op.nn.layer_norm(x, constant(6), constant(6), axes=[-1])  # noqa: E731

    def windows(x):
        x = op.permute_dims(op.reshape(x, (2, 4, 2, 4, 6)), (0, 2, 1, 3, 4))
        return op.reshape(x, (4, 16, 6))

    def image(x):
        return op.reshape(op.permute_dims(op.reshape(x, (2, 2, 4, 4, 6)), (0, 2, 1, 3, 4)), (8, 8, 6))

    def build(x, w):
        y = op.matmul(windows(norm(x)), w)
        return op.add(image(op.add(y, constant(6))), x)

    after = check(build, (8, 8, 6), (6, 6), kernels=2)
    assert all(movement(node.kernel) is None for node in nodes(after))


def test_numbers_are_those_of_numpy():
    """One comparison that does not go through this package's own idea of the unfused module."""
    (x, w, residual) = random((5, 6), (6, 8), (5, 8))
    after = fused(legal(lambda x, w, r: op.add(op.nn.relu(op.matmul(x, w)), r), (5, 6), (6, 8), (5, 8)))
    np.testing.assert_allclose(run(after, x, w, residual)[0], np.maximum(x @ w, 0) + residual, rtol=1e-5, atol=1e-5)


def gated(tokens: int):
    """A gate and what it lets through, of one merged projection."""

    def build(x):
        both = op.matmul(x, constant(128, 192))
        gate, value = (op.strided_slice(both, axes=[1], begin=[at], end=[at + 96]) for at in (0, 96))
        return op.multiply(op.sigmoid(gate), value)

    return EliminateLayout()(legal(build, (tokens, 128)))


@pytest.mark.parametrize("tokens, kernels", [(48, 2), (4096, 1)])
def test_weights_of_two_sums_are_read_in_the_order_they_are_in(tokens, kernels):
    """Which costs each weight so much, and what passes between two kernels so much for each token."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
    before = gated(tokens)
    after = FuseOperators(prices=Prices(target))(before)
    assert len(nodes(after)) == kernels
    assert_same_results(before, after, *random((tokens, 128)))
    assert len(nodes(FuseOperators()(before))) == 1


# --- bytes --------------------------------------------------------------------------------------------------------


def test_a_quantized_input_is_a_kernel_of_its_own():
    """Copies of it for windows then move bytes, and no division."""

    def build(x):
        quantized = op.astype(op.clip(op.divide(x, constant(1)), 0, 255), "uint8")
        return op.nn.conv2d(op.astype(quantized, "float32"), constant(4, 3, 3, 3), padding=1)

    first, _ = nodes(check(build, (1, 3, 6, 6), kernels=2))
    assert [str(each.dtype) for each in first.kernel.outputs] == ["uint8"]
