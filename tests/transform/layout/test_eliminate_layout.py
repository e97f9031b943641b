# SPDX-License-Identifier: Apache-2.0
"""EliminateLayout: what disappears into whom, what stays and why; results against the unchanged module."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax

from helpers import assert_same_results, calls, legal, nodes, op, random, run
from module_lines import assert_lines
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.transform import EliminateLayout


def eliminated(mod):
    return EliminateLayout()(mod)


def moves(mod) -> list[str]:
    """Kernels of ``main`` that only move data."""
    return [n.var.name for n in nodes(mod) if n.kernel is not None and movement(n.kernel) is not None]


def check(build, *shapes, kernels: int, dtype="float32"):
    """Eliminate, count kernels, want no movement among them, compare results; returns the new module."""
    before = legal(build, *shapes, dtype=dtype)
    after = eliminated(before)
    assert len(calls(after)) == kernels
    assert moves(after) == []
    assert_same_results(before, after, *random(*shapes, dtype=dtype))
    return after


# --- consumers read through the map -------------------------------------------------------------------------------


def test_before_and_after():
    """The docstring's example, loop by loop."""

    def build(x, w):
        return op.matmul(op.permute_dims(op.reshape(x, (16, 128))), w)

    after = check(build, (2, 256, 4), (16, 8), kernels=1)

    assert_lines(
        after,
        """
        for i0, i1, k in grid(128, 8, 16):
            matmul[i0, i1] = 0.0
            matmul[i0, i1] = matmul[i0, i1] + x0[k // 8, k % 8 * 32 + i0 // 4, i0 % 4] * x1[k, i1]
        gv = call matmul1(x1, x0)
        """,
    )


@pytest.mark.parametrize("shape", [(4, 4), (4, 6)])
def test_one_tensor_read_transposed_twice(shape):
    """TVM's OptimizeLayoutTransform makes add(x, x) of this where the tensor is square."""
    after = check(lambda x: op.add(op.permute_dims(x), op.permute_dims(x)), shape, kernels=1)
    (node,) = nodes(after)
    i, j = node.kernel.last.spatial
    maps = [load.indices for load in node.kernel.last.loads]
    assert [(a.same_as(j), b.same_as(i)) for a, b in maps] == [(True, True)] * 2


def test_a_square_read_both_ways():
    after = check(lambda x: op.subtract(x, op.permute_dims(x)), (4, 4), kernels=1)
    assert len(nodes(after)[0].args) == 1, "the tensor is one operand, read through two maps"


def test_several_readers_each_get_the_view():
    """One of them reduces, one is point-wise, one moves data itself."""

    def build(x, w):
        view = op.permute_dims(op.reshape(x, (4, 6)))
        return op.matmul(view, w), op.nn.relu(view), op.exp(op.reshape(view, (3, 8)))

    after = check(build, (24,), (4, 5), kernels=3)
    assert all(node.args[0].name == "x0" or node.args[1].name == "x0" for node in nodes(after))


def test_both_operands_and_the_accumulating_stage():
    def build(x, y):
        return op.matmul(op.permute_dims(x), op.reshape(y, (6, 5)))

    check(build, (6, 4), (30,), kernels=1)


def test_a_reduction_reads_through_a_map():
    check(lambda x: op.sum(op.permute_dims(op.reshape(x, (4, 6))), axis=0), (24,), kernels=1)


def test_softmax_and_layer_norm_read_through_a_map():
    check(lambda x: op.nn.softmax(op.permute_dims(x)), (4, 6), kernels=1)
    check(
        lambda x, g, b: op.nn.layer_norm(op.reshape(op.permute_dims(x), (2, 12)), g, b, axes=[-1]),
        (4, 6),
        (12,),
        (12,),
        kernels=1,
    )


def test_a_convolution_reads_through_a_map():
    check(
        lambda x, w: op.nn.conv2d(op.reshape(op.permute_dims(x, (0, 2, 1)), (1, 3, 5, 5)), w, padding=1),
        (1, 25, 3),
        (4, 3, 3, 3),
        kernels=1,
    )


def test_argmax_reads_through_a_map():
    """A tuple reduction: two buffers are written at once."""
    before = legal(lambda x: op.argmax(op.permute_dims(x), axis=1), (5, 7))
    after = eliminated(before)
    assert (len(calls(after)), moves(after)) == (1, [])
    (x,) = random((5, 7))
    np.testing.assert_array_equal(run(after, x)[0], x.argmax(axis=0))


def test_constants_are_read_through_a_map():
    weight = relax.const(np.arange(24, dtype="float32").reshape(4, 6))
    mod = legal(lambda x: op.add(x, op.permute_dims(weight)), (6, 4))
    (x,) = random((6, 4))
    np.testing.assert_array_equal(run(eliminated(mod), x)[0], x + weight.value.numpy().T)


@pytest.mark.parametrize("dtype", ["float16", "int8", "int64", "float64"])
def test_other_dtypes(dtype):
    before = legal(lambda x: op.add(op.permute_dims(x), op.reshape(x, (6, 4))), (4, 6), dtype=dtype)
    after = eliminated(before)
    assert (len(calls(after)), moves(after)) == (1, [])
    x = np.arange(24).reshape(4, 6).astype(dtype)
    np.testing.assert_array_equal(run(after, x)[0], x.T + x.reshape(6, 4))


def test_a_scalar():
    check(lambda x, y: op.add(op.reshape(x, ()), op.sum(y)), (1, 1), (3,), kernels=2)


def test_a_map_that_has_become_too_long_is_kept():
    """Reshapes between shapes without common factors: each step doubles the index arithmetic."""

    def build(x):
        for shape in ((9, 35), (7, 45), (21, 15), (63, 5)):
            x = op.permute_dims(op.reshape(x, shape))
        return op.exp(x)

    before = legal(build, (15, 21))
    after = eliminated(before)
    assert 1 < len(calls(after)) < len(calls(before))
    kept = [e["reason"] for e in read_log(after) if e["action"] == "kept"]
    assert kept == ["its map is too long to be worth reading through"] * (len(calls(after)) - 1)
    assert all(division_count(stage.body) < 40 for node in nodes(after) for stage in node.kernel.stages)
    assert_same_results(before, after, *random((15, 21)))


# --- maps that are not invertible ---------------------------------------------------------------------------------


def test_slice_gather_and_broadcast_into_a_matmul():
    picked = relax.const(np.array([4, 0, 2, 2]))

    def build(x, y):
        left = op.take(op.strided_slice(x, [0], [1], [7], [2]), picked, axis=1)
        return op.matmul(left, op.broadcast_to(y, (4, 5)))

    check(build, (8, 6), (1, 5), kernels=1)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_of_another_width(dtype):
    """32-bit indices take the place of 64-bit iterators: in the condition of a concat, in a reshape, in a roll."""
    picked = relax.const(np.array([7, 6, 7, 2], dtype))

    def build(x):
        joined = op.concat([x, op.negative(x)], 1)
        return op.take(joined, picked, axis=1), op.exp(op.take(op.reshape(x, (24,)), picked, axis=0))

    before = legal(build, (6, 4))
    after = eliminated(before)
    assert_same_results(before, after, *random((6, 4)))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_run_time_indices_of_another_width(dtype):
    before = legal(lambda x, i: op.exp(op.take(rolled(x, 2, 0, 6), i, axis=0)), (6, 4), ((3,), dtype))
    after = eliminated(before)
    assert (len(calls(after)), moves(after)) == (1, [])
    (x,), indices = random((6, 4)), np.array([5, 0, 3], dtype)
    np.testing.assert_allclose(run(after, x, indices)[0], np.exp(np.roll(x, -2, 0)[indices]), rtol=1e-5)


def test_an_embedding_is_read_by_its_consumer():
    before = legal(lambda x, i: op.nn.relu(op.take(x, i, axis=0)), (9, 4), ((3,), "int64"))
    after = eliminated(before)
    assert (len(calls(after)), moves(after)) == (1, [])
    (table,), indices = random((9, 4)), np.array([8, 0, 3])
    np.testing.assert_array_equal(run(after, table, indices)[0], np.maximum(table[indices], 0))


def test_concat_of_several_sources_into_a_matmul():
    def build(x, y, z, w):
        return op.matmul(op.concat([op.permute_dims(x), y, op.reshape(z, (1, 4))], axis=0), w)

    check(build, (4, 3), (2, 4), (4,), (4, 5), kernels=1)


def test_concat_along_the_reduction():
    check(lambda x, y, w: op.matmul(op.concat([x, y], axis=1), w), (3, 4), (3, 2), (6, 5), kernels=1)


def test_padding_and_flip_into_a_sum():
    check(lambda x: op.sum(op.flip(op.nn.pad(x, (1, 2, 0, 3)), 1), axis=1), (4, 5), kernels=1)


def rolled(x, cut, axis, size):
    tail, head = op.strided_slice(x, [axis], [cut], [size]), op.strided_slice(x, [axis], [0], [cut])
    return op.concat([tail, head], axis)


def test_roll_of_two_axes_into_a_consumer():
    """One load, no branch: the cuts are modulos."""
    after = check(lambda x: op.exp(rolled(rolled(x, 3, 0, 7), 2, 1, 5)), (7, 5), kernels=1)
    (node,) = nodes(after)
    (load,) = node.kernel.last.loads
    assert [division_count(index) for index in load.indices] == [1, 1]


# --- attention ----------------------------------------------------------------------------------------------------

BATCH, TOKENS, HEADS, WIDTH = 2, 5, 3, 4


def heads_of(part):
    part = op.reshape(part, (BATCH, TOKENS, HEADS, WIDTH))
    return op.permute_dims(part, (0, 2, 1, 3))


def by_split(qkv):
    parts = op.split(qkv, 3, axis=2)
    return [heads_of(parts[i]) for i in range(3)]


def by_squeeze(qkv):
    parts = op.permute_dims(op.reshape(qkv, (BATCH, TOKENS, 3, HEADS, WIDTH)), (2, 0, 3, 1, 4))
    parts = op.split(parts, 3, axis=0)
    return [op.squeeze(parts[i], 0) for i in range(3)]


def by_slice(qkv):
    size = HEADS * WIDTH
    return [heads_of(op.strided_slice(qkv, [2], [i * size], [(i + 1) * size])) for i in range(3)]


def by_gather(qkv):
    parts = op.permute_dims(op.reshape(qkv, (BATCH, TOKENS, 3, HEADS, WIDTH)), (2, 0, 3, 1, 4))
    return [op.take(parts, relax.const(i, "int64"), axis=0) for i in range(3)]


@pytest.mark.parametrize("parts", [by_split, by_squeeze, by_slice, by_gather])
def test_attention_reads_q_k_and_v_where_they_are(parts):
    """Two batched matmuls, scale, softmax and the output projection; nothing that only moves data."""

    def build(qkv, w):
        q, k, v = parts(qkv)
        scores = op.matmul(op.multiply(q, relax.const(0.5)), op.permute_dims(k, (0, 1, 3, 2)))
        mixed = op.matmul(op.nn.softmax(scores), v)
        merged = op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), (BATCH, TOKENS, HEADS * WIDTH))
        return op.matmul(merged, w)

    size = HEADS * WIDTH
    after = check(build, (BATCH, TOKENS, 3 * size), (size, size), kernels=5)
    loads = [load for node in nodes(after) for stage in node.kernel.stages for load in stage.loads]
    of_qkv = [load for load in loads if len(load.source.shape) == 3 and int(load.source.shape[2]) == 3 * size]
    assert len(of_qkv) == 3
    assert all(division_count(index) == 0 for load in of_qkv for index in load.indices)


# --- the pass as a neighbour of others ----------------------------------------------------------------------------


def test_running_twice_changes_nothing_more():
    def build(x, w):
        return op.matmul(op.permute_dims(op.reshape(x, (16, 128))), w)

    once = eliminated(legal(build, (2, 256, 4), (16, 8)))
    ir.assert_structural_equal(eliminated(once)["main"], once["main"])


def test_the_input_module_is_not_changed():
    before = legal(lambda x: op.exp(op.permute_dims(x)), (4, 6))
    copy = tvm.ir.load_json(tvm.ir.save_json(before))
    eliminated(before)
    ir.assert_structural_equal(before, copy)


def test_equal_layers_share_one_function():
    """Two layers of the same shape become two calls of one PrimFunc."""

    def build(x):
        for _ in range(3):
            x = op.matmul(layer(x), x)
        return x

    def layer(x):
        return op.reshape(op.permute_dims(op.reshape(x, (2, 4, 8)), (1, 0, 2)), (8, 8))

    after = eliminated(legal(build, (8, 8)))
    assert len(calls(after)) == 3
    assert len(set(calls(after))) == 1


def test_the_log_names_map_and_readers():
    def build(x, w):
        return op.matmul(op.permute_dims(op.reshape(x, (16, 128))), w)

    after = eliminated(legal(build, (2, 256, 4), (16, 8)))
    reshape, transpose = read_log(after)
    assert reshape["operator"].startswith("reshape lv(16, 128)")
    assert (reshape["action"], transpose["action"]) == ("eliminated", "eliminated")
    assert transpose["into"] == [nodes(after)[0].var.name]
    assert "x0[" in transpose["map"]
    assert nodes(after)[0].views == [reshape["operator"], transpose["operator"]]
