# SPDX-License-Identifier: Apache-2.0
"""Chains of rows (attention in one kernel, softmax after a matmul) against numpy."""

import pytest
from tvm import te, tirx, topi

from attention_expressions import (
    SCALE,
    attention,
    causal_attention,
    centred_scores_on_a_grid,
    merged_attention,
    scores_of,
    softmax,
)
from smartmem_tvm.schedule import CpuParams


@pytest.mark.each_value
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        (3, 49, 49, 32, 32),  # a window: one block
        (2, 197, 197, 64, 64),  # the last block begins early
        (1, 128, 77, 40, 40),  # other keys than rows; half vectors in the rows
        (2, 256, 96, 80, 80),
        (1, 2, 3, 5, 7),
        (2, 13, 17, 11, 19),  # nothing divides anything
        (4, 9, 16, 1, 33),
    ],
)
def test_attention(check, sizes, bias):
    check(*attention(*sizes, bias), "RowChains")


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("block_bytes", [1, 4096])
def test_any_vector_length_and_block_size(check, lanes, block_bytes):
    params = CpuParams(lanes=lanes, registers=32, cores=3, block_bytes=block_bytes, serial_below=0)
    check(*attention(2, 37, 29, 12, 24, True), "RowChains", params=params)


def test_few_rows_are_shared_by_all_cores(check):
    """A task packs the matrices again, which costs less than cores that wait."""
    params = CpuParams(lanes=16, registers=32, cores=16)
    text = check(*attention(1, 64, 64, 64, 64, False), "RowChains", params=params).script()
    assert "for task in T.parallel(16)" in text


@pytest.mark.parametrize(("rows", "keys"), [(31, 49), (64, 64), (5, 6)])
def test_a_softmax_joins_the_product_before_it(check, rows, keys):
    q, k = te.placeholder((3, rows, 16), name="q"), te.placeholder((3, keys, 16), name="k")
    check([q, k], topi.nn.softmax(scores_of(q, k)), lambda q, k: softmax(q @ k.transpose(0, 2, 1) * SCALE), "RowChains")


@pytest.mark.parametrize("along", [True, False])
def test_rows_that_lie_along_the_depth_are_read_where_they_are(check, along):
    """A copy of weights would be as large as they are."""
    q = te.placeholder((3, 31, 16) if along else (3, 16, 31), name="q")
    k = te.placeholder((3, 49, 16), name="k")
    d = te.reduce_axis((0, 16), "d")

    def product(b, i, j):
        return te.sum((q[b, i, d] if along else q[b, d, i]) * k[b, j, d], d)

    def reference(q, k):
        return softmax((q if along else q.transpose(0, 2, 1)) @ k.transpose(0, 2, 1))

    text = check([q, k], topi.nn.softmax(te.compute((3, 31, 49), product)), reference, "RowChains").script()
    assert (" left = " in text) != along


def test_a_mask_that_selects(check):
    """Conditions cannot be vectorised: that stage runs element by element, the others as ever."""
    check(*causal_attention(2, 30, 16, -1e9), "RowChains")


def test_operands_in_one_tensor_and_heads_side_by_side(check):
    check(*merged_attention(2, 3, 21, 8), "RowChains")


def test_what_follows_the_last_product_is_done_on_its_registers(check):
    inputs, out, reference = attention(2, 20, 24, 16, 16, False)
    residual = te.placeholder((2, 20, 16), name="r")
    output = te.compute(out.shape, lambda *at: out[at] * tirx.const(0.5, "float32") + residual[at], name="sum")
    check([*inputs, residual], output, lambda q, k, v, r: reference(q, k, v) * 0.5 + r, "RowChains")


def test_rows_and_keys_of_two_axes_each(check):
    """Keys on a grid: the row of scores has two axes, flattened in scratch."""
    check(*centred_scores_on_a_grid(), "RowChains")


@pytest.mark.parametrize("sizes", [(2, 1, 40, 16, 16), (1, 64, 1, 16, 8)])
def test_one_row_or_one_key_is_left_to_other_rules(check, sizes):
    """Packing a matrix for a single row never pays, and a row of one score is no row."""
    check(*attention(*sizes, False), "InSequence")
