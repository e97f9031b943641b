# SPDX-License-Identifier: Apache-2.0
"""Compile time stays in proportion where maps or values would grow with every operator."""

import time

import numpy as np

from helpers import calls, legal, op, random, run
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import EliminateLayout, FuseOperators


def misaligned(x):
    """Forty transposes and reshapes whose factors do not line up: no step cancels another."""
    for number in range(40):
        x = op.reshape(op.permute_dims(x), (15, 4) if number % 2 == 0 else (6, 10))
    return op.nn.relu(x)


def diamonds(x):
    for _ in range(20):
        x = op.add(op.tanh(x), x)
    return x


def passes(mod):
    start = time.process_time()
    mod = FuseOperators()(EliminateLayout()(mod))
    assert time.process_time() - start < 20
    return mod


def test_maps_that_grow_are_stored_now_and_then():
    before = legal(misaligned, (6, 10))
    after = passes(before)
    assert 1 < len(calls(after)) < len(calls(before)) / 3
    assert any("too long" in entry.get("reason", "") for entry in read_log(after))
    x = random((6, 10))[0]
    np.testing.assert_array_equal(run(after, x)[0], run(before, x)[0])


def test_values_that_grow_are_stored_now_and_then():
    before = legal(diamonds, (4, 6))
    after = passes(before)
    assert 1 < len(calls(after)) < len(calls(before))
    x = random((4, 6))[0]
    np.testing.assert_allclose(run(after, x)[0], run(before, x)[0], rtol=1e-5)
