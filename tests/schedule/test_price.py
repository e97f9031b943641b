# SPDX-License-Identifier: Apache-2.0
"""Prices of kernels: the rule that would take them, what it would compute again, and how fused kernels compare."""

import pytest
import tvm
from tvm import te, topi

from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.schedule.price import Prices

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 2})
WIDE = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})


def kernel(*tensors):
    return parse(te.create_prim_func(list(tensors)))


def product(rows=64, depth=128, columns=96):
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    return x, w, topi.matmul(x, w)


@pytest.fixture(scope="module")
def prices():
    return Prices(CPU)


def test_the_rule_and_more_cycles_for_more_work(prices):
    small, large = (prices.of(kernel(*product(columns=columns))) for columns in (96, 192))
    assert small.rule == large.rule == "Matmul"
    assert 1.5 < large.cycles / small.cycles < 2.5


def test_kernels_that_are_alike_are_scheduled_once(prices):
    assert prices.of(kernel(*product())) is prices.of(kernel(*product()))


def test_steps_that_read_their_own_place_of_an_input_are_scheduled_once(prices):
    """Whichever it is, but for the distance between two that one kernel reads."""
    x = te.placeholder((32, 40, 64), name="x")

    def step(first, *others):
        def value(i, j):
            return sum((x[i, at, j] * 2.0 for at in others), x[i, first, j])

        return kernel(x, te.compute((32, 64), value))

    assert prices.of(step(3)) is prices.of(step(0)) is prices.of(step(39))
    assert prices.of(step(3, 4)) is prices.of(step(3, 4))
    assert prices.of(step(3, 4)) is not prices.of(step(3, 5))
    assert prices.of(step(3, 4)) is not prices.of(step(3))


def test_what_passes_through_memory_counts(prices):
    """Two element-wise kernels cost more than the one that does the work of both."""
    x, y = te.placeholder((64, 1024), name="x"), te.placeholder((64, 1024), name="y")
    one = kernel(x, topi.nn.relu(topi.add(x, x)))
    fused, apart = prices.compare([one], [kernel(x, topi.add(x, x)), kernel(y, topi.nn.relu(y))])
    assert fused < 0.8 * apart


def test_a_product_per_window_is_dearer_than_product_and_windows():
    """As `FuseAttention` would fuse them: columns of the product are the four places of a window, of 16 lanes."""
    prices = Prices(WIDE)
    c, q, k = 128, 14, te.reduce_axis((0, 64), name="k")
    x, w = te.placeholder((64, q, 2, q, 2), name="x"), te.placeholder((c, 64), name="w")
    conv = te.compute((c, q, 2, q, 2), lambda f, y, a, z, b: te.sum(w[f, k] * x[k, y, a, z, b], axis=k), name="conv")
    a, b = te.reduce_axis((0, 2), name="a"), te.reduce_axis((0, 2), name="b")
    pooled = te.compute((c, q, q), lambda f, y, z: te.sum(conv[f, y, a, z, b], axis=[a, b]), name="pool")
    read = te.placeholder((c, q, 2, q, 2), name="read")
    pool = te.compute((c, q, q), lambda f, y, z: te.sum(read[f, y, a, z, b], axis=[a, b]), name="pool")
    whole = kernel(x, w, pooled)
    assert prices.of(whole).rule == "RowChains"
    fused, apart = prices.compare([whole], [kernel(x, w, conv), kernel(read, pool)])
    assert fused > 1.5 * apart


def test_other_targets_have_no_prices():
    gpu = tvm.target.Target({"kind": "opencl"})
    assert Prices(gpu).of(kernel(*product())) is None
    assert Prices(gpu).compare([kernel(*product())], [kernel(*product())]) is None


def test_vectors_are_those_of_the_target():
    wide = Prices(WIDE)
    narrow = Prices(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}))
    large = product(256, 256, 256)
    assert wide.of(kernel(*large)).cycles * 2 < narrow.of(kernel(*large)).cycles
