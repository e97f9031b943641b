# SPDX-License-Identifier: Apache-2.0
"""FuseAttention: rows stay on chip between products; what leaves its row, or is read elsewhere, stays apart."""

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import assert_same_results, calls, constant, legal, nodes, op, random, run
from smartmem_tvm import Options, compile
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.schedule import ScheduleKernels, default_rules
from smartmem_tvm.schedule.cpu.attention import RowChains
from smartmem_tvm.schedule.gpu.attention.chain_tile import GpuChainParams
from smartmem_tvm.schedule.gpu.attention.flash_attention import takes
from smartmem_tvm.schedule.gpu.attention.flash_tile import AttentionParams
from smartmem_tvm.schedule.gpu.attention.row_chains import refusal
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import EliminateLayout, FuseAttention, FuseOperators, FuseRows, SplitReductions

HEADS, ROWS, DEPTH = 3, 12, 8
QUERY = (2, HEADS, ROWS, DEPTH)


def prepared(mod) -> tvm.IRModule:
    return tvm.transform.Sequential([EliminateLayout(), FuseRows(), FuseOperators()])(mod)


def fused(build, *shapes, on_chip_bytes=512 * 1024, **dtypes) -> tvm.IRModule:
    before = legal(build, *shapes)
    after = FuseAttention(on_chip_bytes)(prepared(before))
    assert_same_results(before, after, *random(*shapes, **dtypes))
    return after


def decisions(mod) -> list[dict]:
    return [entry for entry in read_log(mod) if entry["pass"] == "FuseAttention"]


def scores(q, k):
    return op.matmul(op.multiply(q, relax.const(0.3)), op.permute_dims(k, (0, 1, 3, 2)))


def attention(q, k, v, extra=None):
    s = scores(q, k)
    return op.matmul(op.nn.softmax(s if extra is None else op.add(s, extra)), v)


def fused_for_gpu(build, *shapes) -> tvm.IRModule:
    """With the reasons of a GPU; the results are computed on a CPU."""
    before = legal(build, *shapes)
    after = FuseAttention(refusal=partial(refusal, params=GpuChainParams()))(prepared(before))
    assert_same_results(before, after, *random(*shapes))
    return after


def takes_one_rule(mod) -> bool:
    """Whether every kernel is scheduled as a chain of rows, after the pass that comes between."""
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    with target:
        scheduled = ScheduleKernels([RowChains()])(SplitReductions()(mod))
    functions = [f for f in scheduled.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return all(f.attrs.get("tirx.is_scheduled") for f in functions)


@pytest.mark.parametrize("keys", [ROWS, 77, 2])
def test_attention_is_one_kernel(keys):
    """The same for self and cross attention, square and not."""
    other = (2, HEADS, keys, DEPTH)
    after = fused(attention, QUERY, other, other)
    assert len(calls(after)) == 1
    assert takes_one_rule(after)
    assert [d["action"] for d in decisions(after)] == ["fused", "fused"]


@pytest.mark.parametrize("extra", [(1, HEADS, ROWS, ROWS), (2, 1, 1, ROWS), (1, 1, ROWS, ROWS)])
def test_bias_and_mask_as_inputs(extra):
    assert len(calls(fused(attention, QUERY, QUERY, QUERY, extra))) == 1


def test_a_causal_mask():
    mask = relax.const(np.where(np.tri(ROWS, dtype=bool), 0, -1e9).astype("float32"))
    assert len(calls(fused(lambda q, k, v: attention(q, k, v, mask), QUERY, QUERY, QUERY))) == 1


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_out_of_one_projection_and_side_by_side_again(batch):
    """Split, transposed, multiplied, transposed back, added to a residual: the view after the last product as well."""
    width = HEADS * DEPTH

    def build(x):
        parts = op.reshape(op.matmul(x, constant(width, 3 * width)), (batch, ROWS, 3, HEADS, DEPTH))
        q, k, v = (op.squeeze(op.strided_slice(parts, [2], [n], [n + 1]), [2]) for n in range(3))
        heads = [op.permute_dims(t, (0, 2, 1, 3)) for t in (q, k, v)]
        joined = op.reshape(op.permute_dims(attention(*heads), (0, 2, 1, 3)), (batch, ROWS, width))
        return op.add(joined, x)

    after = fused(build, (batch, ROWS, width))
    assert len(calls(after)) == 2  # the projection, and the rest
    assert "softmax" in calls(after)[1]


def test_windows_of_several_images_in_one_mask():
    """Scores are viewed as [images, windows, ...] for the mask and as [images * windows, ...] for the softmax."""
    images, windows = 2, 4
    shape = (images * windows, HEADS, 9, DEPTH)

    def build(q, k, v):
        s = op.reshape(scores(q, k), (images, windows, HEADS, 9, 9))
        s = op.add(s, constant(windows, 1, 9, 9))
        return op.matmul(op.nn.softmax(op.reshape(s, (images * windows, HEADS, 9, 9))), v)

    assert len(calls(fused(build, shape, shape, shape))) == 1


def test_a_window_view_after_the_last_product():
    """Rows numbered by windows are written as pixels, onto a residual: the chain runs in the order of the pixels."""
    shape = (4, HEADS, 9, DEPTH)  # 2 x 2 windows of 3 x 3

    def build(q, k, v, residual):
        o = op.reshape(attention(q, k, v), (2, 2, HEADS, 3, 3, DEPTH))
        return op.add(op.reshape(op.permute_dims(o, (0, 3, 1, 4, 2, 5)), (6, 6, HEADS * DEPTH)), residual)

    after = fused(build, shape, shape, shape, (6, 6, HEADS * DEPTH))
    assert len(calls(after)) == 1
    assert takes_one_rule(after)


def test_softmax_alone_joins_the_product_before_it():
    after = fused(lambda q, k: op.nn.softmax(scores(q, k)), QUERY, QUERY)
    assert len(calls(after)) == 1


def test_probabilities_with_two_readers_stay_a_result_of_their_own():
    def build(q, k, v, w):
        p = op.nn.softmax(scores(q, k))
        return op.matmul(p, v), op.matmul(p, w)

    after = fused(build, QUERY, QUERY, QUERY, QUERY)
    assert sorted("softmax" in name for name in calls(after)) == [False, False, True]


def test_results_of_the_function_stay():
    def build(q, k):
        s = scores(q, k)
        return s, op.nn.softmax(s)

    assert len(calls(fused(build, QUERY, QUERY))) == 2


def test_softmax_down_the_columns_leaves_its_rows_for_the_next_product():
    """The statistic runs along the rows of the first product: nothing to share with the second."""
    after = fused(lambda q, k, v: op.matmul(op.nn.softmax(scores(q, k), axis=2), v), QUERY, QUERY, QUERY)
    assert len(calls(after)) > 1


def test_a_working_set_too_large_is_refused_with_its_size():
    after = fused(attention, QUERY, QUERY, QUERY, on_chip_bytes=1000)
    assert len(calls(after)) == 3
    (entry,) = decisions(after)
    assert entry["action"] == "kept"
    assert "bytes" in entry["reason"]


def test_few_rows_are_refused():
    few = (2, HEADS, 4, DEPTH)
    after = fused(attention, few, QUERY, QUERY)
    assert len(calls(after)) == 3
    assert "too few" in decisions(after)[0]["reason"]


def test_two_matmuls_without_a_statistic_stay_two():
    shape = (ROWS, DEPTH)
    after = fused(lambda x: op.matmul(op.nn.relu(op.matmul(x, constant(DEPTH, 5))), constant(5, DEPTH)), shape)
    assert len(calls(after)) == 2


def squeeze_and_excite(x):
    squeezed = op.mean(x, axis=[2, 3], keepdims=True)
    hidden = op.nn.relu(op.nn.conv2d(squeezed, constant(4, 16, 1, 1)))
    return op.multiply(x, op.sigmoid(op.nn.conv2d(hidden, constant(16, 4, 1, 1, seed=8))))


def test_the_layers_of_squeeze_and_excitation_are_one_kernel():
    before = prepared(legal(squeeze_and_excite, (1, 16, 5, 5)))
    after = fused(squeeze_and_excite, (1, 16, 5, 5))
    assert len(calls(before)) == 3
    assert len(calls(after)) == 2


def test_the_division_comes_after_the_sum_where_that_divides_fewer_numbers():
    (wide,) = nodes(fused(attention, QUERY, (2, HEADS, 40, DEPTH), (2, HEADS, 40, DEPTH)))
    (narrow,) = nodes(fused(attention, QUERY, (2, HEADS, 3, DEPTH), (2, HEADS, 3, DEPTH)))
    assert isinstance(wide.kernel.last.body.value, tvm.tirx.Div)
    assert narrow.kernel.last.reduction


def test_scheduled_and_switched_off():
    mod = legal(attention, QUERY, QUERY, QUERY)
    arrays = random(QUERY, QUERY, QUERY)
    whole, parts = compile(mod), compile(mod, options=Options(fuse_attention=False))
    assert (len(calls(whole.graph)), len(calls(parts.graph))) == (1, 3)
    for a, b in zip(whole.run(*arrays), parts.run(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def windows_as_pixels(q, k, v, residual):
    """Rows numbered by windows are written as pixels, onto a residual."""
    o = op.reshape(attention(q, k, v), (2, 2, HEADS, 3, 3, DEPTH))
    return op.add(op.reshape(op.permute_dims(o, (0, 3, 1, 4, 2, 5)), (6, 6, HEADS * DEPTH)), residual)


def one_projection(x):
    """Heads out of one projection, and side by side again."""
    width = HEADS * DEPTH
    parts = op.reshape(op.matmul(x, constant(width, 3 * width)), (2, ROWS, 3, HEADS, DEPTH))
    q, k, v = (
        op.permute_dims(op.squeeze(op.strided_slice(parts, [2], [n], [n + 1]), [2]), (0, 2, 1, 3)) for n in range(3)
    )
    return op.add(op.reshape(op.permute_dims(attention(q, k, v), (0, 2, 1, 3)), (2, ROWS, width)), x)


def masked(q, k, v):
    mask = relax.const(np.where(np.tri(ROWS, dtype=bool), 0, -1e9).astype("float32"))
    return attention(q, k, v, mask)


@pytest.mark.device
@pytest.mark.parametrize(
    ("build", "shapes", "kernels"),
    [
        (attention, [QUERY, (2, HEADS, 20, DEPTH), (2, HEADS, 20, DEPTH)], 1),
        (masked, [QUERY] * 3, 1),
        (one_projection, [(2, ROWS, HEADS * DEPTH)], 2),
        (windows_as_pixels, [*[(4, HEADS, 9, DEPTH)] * 3, (6, 6, HEADS * DEPTH)], 1),
    ],
)
def test_on_a_gpu_with_its_rule(build, shapes, kernels):
    mod, target, arrays = legal(build, *shapes), parse_target("opencl"), random(*shapes)
    whole = compile(mod, target)
    assert len(calls(whole.graph)) == kernels
    with target:
        scheduled = ScheduleKernels(default_rules())(whole.graph)
    assert "GpuRowChains" in {rule["name"] for rule in kernel_rules(scheduled).values()}
    for a, b in zip(whole.run(*arrays), run(mod, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "shapes", "reason"),
    [
        (attention, [(2, HEADS, 4, DEPTH), QUERY, QUERY], "too few"),
        (attention, [QUERY, (2, HEADS, 2000, DEPTH), (2, HEADS, 2000, DEPTH)], "do not fit"),
        (lambda x: op.nn.softmax(op.matmul(x, constant(2048, 64))), [(64, 2048)], "to be read again"),
    ],
)
def test_what_a_group_of_threads_cannot_hold_stays_apart(build, shapes, reason):
    after = fused_for_gpu(build, *shapes)
    assert len(calls(after)) > 1
    (entry,) = decisions(after)
    assert entry["action"] == "kept"
    assert reason in entry["reason"]


def test_few_rows_of_a_large_product_stay_apart_on_a_gpu():
    """One group of threads would do what the columns of a matmul give to many."""
    after = fused_for_gpu(lambda x: op.nn.softmax(op.matmul(x, constant(192, 384))), (8, 192))
    assert len(calls(after)) == 2
    assert "estimated" in decisions(after)[0]["reason"]


def test_layers_of_a_single_row_are_no_chain_for_a_gpu():
    assert len(calls(fused_for_gpu(squeeze_and_excite, (1, 16, 5, 5)))) == 3


def fused_for_matrices(build, *shapes) -> tvm.IRModule:
    """With the rule for attention of halves, which takes rows of any length."""
    facts = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80", **facts}, host="llvm")
    passing = partial(takes, params=AttentionParams.of(target), shortened=True)
    before = legal(build, *shapes)
    after = FuseAttention(refusal=partial(refusal, params=GpuChainParams()), passing=passing)(prepared(before))
    assert_same_results(before, after, *random(*shapes))
    return after


LONG = [(1, 2, 16, DEPTH), (1, 2, 2000, DEPTH), (1, 2, 2000, DEPTH)]


def test_rows_of_any_length_are_one_kernel_where_a_rule_lets_keys_go_by():
    after = fused_for_matrices(attention, *LONG)
    assert len(calls(after)) == 1
    assert [entry["action"] for entry in decisions(after)] == ["fused", "fused"]


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda q, k: op.nn.softmax(scores(q, k)), LONG[:2]),  # no values follow
        (attention, [(1, 2, 8, DEPTH), *LONG[1:]]),  # too few rows
        (lambda q, k, v: op.matmul(op.exp(op.nn.softmax(scores(q, k))), v), LONG),  # these are no weights
    ],
)
def test_long_rows_of_anything_else_stay_apart(build, shapes):
    after = fused_for_matrices(build, *shapes)
    assert len(calls(after)) > 1
    assert any("do not fit" in entry.get("reason", "") for entry in decisions(after))
