# SPDX-License-Identifier: Apache-2.0
"""Attention by matrix instructions: its CUDA, run on a CPU, beside numpy."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from attention_expressions import attention
from cuda_on_cpu import run, source_of
from half_attention import half_attention, reference
from smartmem_tvm.analysis.row_chain import row_chain_of
from smartmem_tvm.ir.kernel import DECISIONS, Opaque, parse
from smartmem_tvm.schedule.core.decisions import deciding
from smartmem_tvm.schedule.gpu.attention.flash_attention import GpuMatrixAttention, takes
from smartmem_tvm.schedule.gpu.attention.flash_tile import AttentionParams, AttentionTile
from smartmem_tvm.schedule.gpu.attention.softmax import SoftmaxAttention
from smartmem_tvm.tune.decision_space import seed_of, space_of

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
AMPERE = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
HOPPER = tvm.target.Target({**FACTS, "arch": "sm_90a"}, host="llvm")


def half(value: float):
    return tirx.const(value, "float16")


def placeholder(name, *shape, dtype="float16"):
    return te.placeholder(shape, dtype, name)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype("float16")


def scheduled(func, tile=None, target=AMPERE):
    schedule = GpuMatrixAttention(tile=tile).apply(func, target)
    return None if schedule is None else schedule.mod["main"].with_attr("global_symbol", "main")


def check(func, shape, tile, folder, expected, **more):
    """Run with random rows, keys and values beside ``expected(q, k, v)``."""
    batch, rows, keys, depth, width = shape
    arrays = {"q": drawn(1, batch, rows, depth), "k": drawn(2, batch, keys, depth), "v": drawn(3, batch, keys, width)}
    out = np.full((batch, rows, width), np.nan, "float16")
    right = expected(*arrays.values())
    target = HOPPER if tile is not None and tile.group else AMPERE
    run(scheduled(func, tile, target), target, {**arrays, **more, "out": out}, folder)
    np.testing.assert_allclose(out.astype("float64"), right, rtol=2e-3, atol=1e-3 * np.abs(right).max())


def test_more_keys_than_a_block_and_the_last_one_not_whole(tmp_path):
    shape = (1, 18, 57, 16, 16)
    check(half_attention(shape), shape, AttentionTile(16, 16, 16, 3), tmp_path, reference)


@pytest.mark.device
def test_a_window_with_a_bias_and_a_mask(tmp_path):
    """One block of keys: nothing is on its way while it is worked on."""
    shape, bias, mask = (2, 49, 49, 16, 16), placeholder("bias", 49, 49), placeholder("mask", 2, 1, 49)
    func = half_attention(shape, lambda s, b, i, j, bias, mask: s + bias[i, j] + mask[b, 0, j], (bias, mask))
    rel, low = drawn(5, 49, 49), np.where(drawn(6, 2, 1, 49) > 0.5, -100, 0).astype("float16")
    check(func, shape, None, tmp_path, lambda *a: reference(*a, lambda s: s + rel + low), bias=rel, mask=low)


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1, 64, 128, 64, 64), AttentionTile(64, 32, 64, 2)),
        ((1, 37, 41, 19, 11), AttentionTile(32, 16, 16, 2)),
        ((3, 16, 17, 40, 24), AttentionTile(16, 16, 16, 2)),
        ((1, 70, 33, 80, 72), AttentionTile(64, 32, 32, 3)),
        ((1, 20, 33, 160, 2), AttentionTile(32, 16, 32, 2)),
        ((2, 197, 197, 64, 64), None),
        ((1, 64, 160, 64, 64), AttentionTile(64, 16, 32, 4, True)),
        ((2, 37, 41, 19, 11), AttentionTile(64, 16, 16, 3, True)),
        ((1, 130, 65, 40, 24), AttentionTile(128, 16, 48, 2, True)),
        ((1, 70, 33, 80, 72), AttentionTile(64, 16, 64, 1, True)),
        ((1, 33, 75, 16, 64), AttentionTile(64, 16, 80, 1, True)),  # keys end where values may not begin
    ],
    ids=str,
)
@pytest.mark.parametrize("normalised", [False, True])
def test_any_shape_and_tile(shape, tile, normalised, tmp_path):
    func = half_attention(shape, lambda s, *_: s * half(0.125), normalised=normalised)
    check(func, shape, tile, tmp_path, lambda *a: reference(*a, lambda s: s * 0.125))


@pytest.mark.device
def test_a_condition_on_row_and_key(tmp_path):
    """Later keys are masked: whole blocks of them are below anything, the first block is not."""
    shape = (1, 40, 40, 16, 16)
    func = half_attention(shape, lambda s, b, i, j: tirx.Select(j <= i, s, half(-65504)))
    expected = np.tri(40, dtype=bool)
    check(
        func,
        shape,
        AttentionTile(32, 16, 16, 2),
        tmp_path,
        lambda *a: reference(*a, lambda s: np.where(expected, s, -65504)),
    )


@pytest.mark.parametrize("keys", [40, pytest.param(32, marks=pytest.mark.device)])
def test_rows_without_any_key(keys, tmp_path):
    """The first block is minus infinity for some rows, and every block for one, whose weights are no numbers."""
    shape, mask = (1, 16, keys, 16, 16), placeholder("mask", 16, keys)
    func = half_attention(shape, lambda s, b, i, j, mask: s + mask[i, j], (mask,), normalised=True, guarded=True)
    low = np.zeros((16, keys), "float16")
    low[3], low[4, :20], low[5, 20:] = -np.inf, -np.inf, -np.inf
    check(func, shape, AttentionTile(16, 16, 16, 2), tmp_path, lambda *a: reference(*a, lambda s: s + low), mask=low)


@pytest.mark.device
def test_what_follows_is_done_on_the_registers(tmp_path):
    shape, rest = (1, 32, 32, 16, 24), placeholder("rest", 1, 32, 24)
    func = half_attention(shape, None, (rest,), after=lambda o, b, i, c, rest: o * half(0.5) + rest[b, i, c])
    r = drawn(7, 1, 32, 24)
    check(func, shape, None, tmp_path, lambda *a: reference(*a) * 0.5 + r.astype("float64"), rest=r)


@pytest.mark.parametrize("tile", [AttentionTile(64, 16, 16, 3, True), AttentionTile(64, 16, 48, 1, True)], ids=str)
def test_four_warps_together_with_masks_and_rows_without_keys(tile, tmp_path):
    shape, mask = (2, 66, 40, 16, 16), placeholder("mask", 66, 40)
    func = half_attention(shape, lambda s, b, i, j, mask: s + mask[i, j], (mask,), normalised=True, guarded=True)
    low = np.zeros((66, 40), "float16")
    low[3], low[4, :20], low[65, 20:] = -np.inf, -np.inf, -np.inf
    check(func, shape, tile, tmp_path, lambda *a: reference(*a, lambda s: s + low), mask=low)


def test_one_kernel_that_copies_by_itself():
    source, kernels = source_of(scheduled(half_attention((2, 256, 256, 64, 64))), AMPERE)
    assert len(kernels) == 1 and "m16n8k16" in source and "cp_async_cg_async_cg_shared_global_16" in source
    assert "_held" not in source


def test_four_warps_multiply_together_on_hopper_only():
    func = half_attention((16, 1024, 1024, 64, 64))
    source, kernels = source_of(scheduled(func, target=HOPPER), HOPPER)
    assert len(kernels) == 1 and "wgmma.mma_async.sync.aligned.m64n" in source and "mma.sync" not in source
    with deciding(func) as taken:
        GpuMatrixAttention().apply(func, HOPPER)
    space, seed = space_of(taken, "GpuMatrixAttention"), seed_of(taken, "GpuMatrixAttention")
    alone = {"rows": 64, "warp_rows": 32, "keys": 64, "stages": 2, "group": False}
    assert space.holds({f"gpu_matrix_attention.{gene}": value for gene, value in alone.items()})
    assert seed["gpu_matrix_attention.group"] and space.holds(seed)


@pytest.mark.parametrize(
    ("func", "target"),
    [
        (half_attention((2, 8, 64, 32, 32)), AMPERE),  # few rows
        (half_attention((2, 64, 64, 32, 400)), AMPERE),  # results that no thread can hold
        (half_attention((2, 64, 64, 32, 32)), tvm.target.Target({**FACTS, "arch": "sm_75"}, host="llvm")),
        (te.create_prim_func([*(lambda a: [*a[0], a[1]])(attention(2, 64, 64, 32, 32, False))]), AMPERE),  # float32
    ],
)
def test_others_are_left_to_other_rules(func, target):
    assert scheduled(func, target=target) is None


def chain(func):
    return row_chain_of(parse(func))


def test_rows_of_any_length_are_taken():
    params = AttentionParams.of(AMPERE)
    assert takes(chain(half_attention((1, 4096, 4096, 64, 64))), params, False)
    inputs, output, _ = attention(8, 4096, 4096, 40, 40, False)  # before its numbers are halves
    whole = chain(te.create_prim_func([*inputs, output]))
    assert takes(whole, params, True) and not takes(whole, params, False)
    assert not takes(chain(half_attention((1, 8, 4096, 64, 64))), params, True)


def test_what_is_no_softmax_is_none():
    q, k, v = (te.placeholder((2, 32, 16), name=name) for name in "qkv")
    d, j1, j2, j3 = (te.reduce_axis((0, extent)) for extent in (16, 32, 32, 32))
    s = te.compute((2, 32, 32), lambda b, i, j: te.sum(q[b, i, d] * k[b, j, d], d), "s")
    top = te.compute((2, 32), lambda b, i: te.max(s[b, i, j1], j1), "top")
    e = te.compute(s.shape, lambda b, i, j: tirx.exp(s[b, i, j] * 0.5 - top[b, i]), "e")
    total = te.compute((2, 32), lambda b, i: te.sum(e[b, i, j2], j2), "total")
    o = te.compute((2, 32, 16), lambda b, i, c: te.sum(e[b, i, j3] / total[b, i] * v[b, j3, c], j3), "o")
    with pytest.raises(Opaque, match="less their maximum"):
        SoftmaxAttention(chain(te.create_prim_func([q, k, v, o])))


def test_a_tuner_may_choose_other_tiles():
    func = half_attention((2, 256, 256, 64, 64))
    with deciding(func) as taken:
        assert GpuMatrixAttention().apply(func, AMPERE) is not None
    space, seed = space_of(taken, "GpuMatrixAttention"), seed_of(taken, "GpuMatrixAttention")
    name = "gpu_matrix_attention"
    assert set(seed) == {f"{name}.{field}" for field in ("rows", "warp_rows", "keys", "stages", "group")}
    assert not space.holds({**seed, f"{name}.group": True})
    assert space.holds(seed) and space.holds({**seed, f"{name}.rows": 32, f"{name}.keys": 128})
    assert not space.holds({**seed, f"{name}.rows": 16, f"{name}.warp_rows": 32})
    given = func.with_attr(DECISIONS, {**seed, f"{name}.rows": 32, f"{name}.keys": 128})
    with deciding(given) as taken:
        assert GpuMatrixAttention().apply(given, AMPERE) is not None
    assert taken[0].values["keys"] == 128
