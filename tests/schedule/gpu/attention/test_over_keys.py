# SPDX-License-Identifier: Apache-2.0
"""Attention of few rows over a cache on GPUs: its CUDA on a CPU beside numpy, NaN behind the length."""

import numpy as np
import pytest
import tvm
from tvm import te

from cuda_on_cpu import run, source_of
from smartmem_tvm.ir.kernel import KEY_AXIS, parse
from smartmem_tvm.schedule.choose import choose
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.schedule.gpu.attention.over_keys import why_not_over_keys
from smartmem_tvm.schedule.gpu.attention.over_keys_tile import KeyShape, KeyTile, able, key_tile
from smartmem_tvm.target import Limits

_FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
CUDA = tvm.target.Target({**_FACTS, "arch": "sm_90a"}, host="llvm")


def attention(heads, group, tokens, keys, depth, width, dtype="float32", divides="before", mask=True, guard=False):
    """Return attention of `heads` key heads with a length as its last input.

    Parameters
    ----------
    divides : str
        Whether weights are divided by their sum ``before`` the second product or ``after`` it.
    guard : bool
        Weights that are NaN are zero.
    """
    every, kind = heads * group, "float32"
    q = te.placeholder((every, tokens, depth), kind, "q")
    k = te.placeholder((heads, keys, depth), dtype, "keys")
    v = te.placeholder((heads, keys, width), dtype, "values")
    m = te.placeholder((tokens, keys), kind, "mask")
    length = te.placeholder((1,), "int64", "length")
    d, j, i, n = (te.reduce_axis((0, extent)) for extent in (depth, keys, keys, keys))
    rows = (every, tokens)
    scores = te.compute(
        (*rows, keys), lambda h, t, s: te.sum(q[h, t, d] * k[h // group, s, d].astype(kind), d), "scores"
    )
    added = te.compute((*rows, keys), lambda h, t, s: scores[h, t, s] * 0.25 + (m[t, s] if mask else 0.0), "added")
    most = te.compute(rows, lambda h, t: te.max(added[h, t, j], j), "most")
    weights = te.compute((*rows, keys), lambda h, t, s: te.exp(added[h, t, s] - most[h, t]), "weights")
    total = te.compute(rows, lambda h, t: te.sum(weights[h, t, i], i), "total")
    after = divides == "after"

    def share(h, t, s):
        found = weights[h, t, s] / total[h, t]
        return tvm.tirx.Select(tvm.tirx.isnan(found), tvm.tirx.const(0.0, kind), found) if guard else found

    shares = weights if after else te.compute((*rows, keys), share, "shares")
    result = te.compute(
        (*rows, width), lambda h, t, c: te.sum(shares[h, t, n] * v[h // group, n, c].astype(kind), n), "result"
    )
    if after:
        result = te.compute((*rows, width), lambda h, t, c: result[h, t, c] / total[h, t], "divided")
    func = te.create_prim_func([q, k, v, *([m] if mask else []), length, result])
    return func.with_attrs({KEY_AXIS: [1, 1, 2], "global_symbol": "main"})


def drawn(random, func, length, dtype):
    """Return arguments by name, with NaN behind the length, and the result of numpy."""
    kernel = parse(func)
    found = {
        each.name: random.standard_normal([int(n) for n in each.shape]).astype("float32") for each in kernel.inputs
    }
    found["keys"], found["values"] = (found[name].astype(dtype) for name in ("keys", "values"))
    if "mask" in found:
        found["mask"] = np.where(random.random(found["mask"].shape) < 0.3, np.float32(-1e9), found["mask"])
        found["mask"][:, 0] = 0
    found["length"] = np.array([length])
    q, k, v = (found[name].astype("float64") for name in ("q", "keys", "values"))
    group = len(q) // len(k)
    k, v = (np.repeat(each[:, :length], group, 0) for each in (k, v))
    scores = q @ k.swapaxes(1, 2) * 0.25
    if "mask" in found:
        scores = scores + found["mask"][:, :length]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    for name in ("keys", "values"):
        found[name][:, length:] = np.nan
    (result,) = kernel.outputs
    found[result.name] = np.full([int(n) for n in result.shape], np.nan, "float32")
    return found, wanted


def check(func, random, folder, dtype="float32", lengths=(1,), decisions=None):
    chosen = choose(func.with_attr(DECISIONS, decisions) if decisions else func, CUDA)
    assert chosen.plan.rule == "GpuOverKeys", why_not_over_keys(func, CUDA)
    for length in lengths:
        given, wanted = drawn(random, func, length, dtype)
        run(chosen.plan.func, CUDA, given, folder)
        found = list(given.values())[-1]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * max(1, np.abs(wanted).max()))
    return chosen.plan.func


@pytest.mark.device
@pytest.mark.parametrize("seed", range(8))
def test_random_attention(seed, tmp_path):
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    keys, dtype = pick(17, 31, 32, 64, 97, 128, 257), pick("float32", "float16")
    func = attention(
        pick(1, 2, 3),
        pick(1, 1, 2, 3, 4),
        pick(1, 1, 1, 2, 3),
        keys,
        *pick((4, 4), (8, 8), (12, 12), (16, 20), (20, 16), (64, 64), (64, 32)),
        dtype,
        pick("before", "after"),
        bool(pick(True, True, False)),
    )
    check(func, random, tmp_path, dtype, (int(random.integers(1, keys + 1)),))


@pytest.mark.device
@pytest.mark.parametrize(
    "tile",
    [
        {"rows": 4, "keys": 32, "threads": 64, "lanes": 2},
        {"rows": 2, "keys": 64, "threads": 128, "lanes": 4},
        {"rows": 1, "keys": 128, "threads": 256, "lanes": 4},
    ],
)
def test_lengths_by_tile(tile, tmp_path):
    """One part and several, lengths at the ends of parts, and thread blocks with some of the rows that share keys."""
    func = attention(2, 4, 1, 100, 16, 16)
    decisions = {f"gpu_over_keys.{name}": value for name, value in tile.items()}
    check(func, np.random.default_rng(0), tmp_path, lengths=(1, 33, 100), decisions=decisions)


def test_keys_that_nothing_reads_are_left_to_thread_blocks_that_end(tmp_path):
    func = check(attention(2, 4, 1, 256, 64, 64), np.random.default_rng(0), tmp_path, lengths=(65,))
    source, kernels = source_of(func, CUDA)
    assert len(kernels) == 2 and " turn < min(" in source  # a loop of one turn or none
    assert source.count("float4*)(keys_ptr") >= 4  # numbers of a key on their way together


def test_a_row_without_keys_is_zero_where_the_model_says_so(tmp_path):
    func = attention(1, 2, 1, 64, 8, 8, guard=True)
    random = np.random.default_rng(0)
    chosen = choose(func, CUDA)
    given, _ = drawn(random, func, 64, "float32")
    given["mask"][:] = -np.inf
    run(chosen.plan.func, CUDA, given, tmp_path)
    np.testing.assert_array_equal(list(given.values())[-1], 0)


def test_what_is_refused():
    whole = attention(1, 1, 1, 64, 8, 8).without_attr(KEY_AXIS)
    assert why_not_over_keys(whole, CUDA) == "it is no attention over a cache"
    assert "too many" in why_not_over_keys(attention(1, 4, 8, 64, 8, 8), CUDA)
    assert "too many" in why_not_over_keys(attention(1, 1, 1, 64, 512, 8), CUDA)


@pytest.mark.parametrize("keys", [17, 40, 256, 2048, 32768])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("head", [8, 64, 128])
def test_a_tile_is_within_the_limits(keys, group, head):
    for size, run_ in ((4, 4), (2, 8)):
        shape = KeyShape(8, group, 1, keys, head, head, size, min(run_, head), min(run_, head))
        tile = key_tile(shape, Limits())
        assert isinstance(tile, KeyTile) and able(tile, shape, Limits())
        assert tile.parts(shape) <= 16 or tile.keys == 128 or keys > 2048 or group > 4 or head > 64
