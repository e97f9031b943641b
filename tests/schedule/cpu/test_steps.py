# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers on a CPU against ONNX Runtime: vectors of units, sequences and blocks side by side, threads."""

import numpy as np
import onnxruntime
import pytest
from tvm import tirx

from covering import singles
from recurrent_layer import recurrent_layer
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.schedule.core.steps import has_steps
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.steps import Steps
from smartmem_tvm.target import parse_target

CPU = parse_target("cpu")


def scheduled(model, **sizes) -> str:
    """The kernel of the steps after the rule, for a processor of these sizes."""
    mod = from_onnx(model)
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc) and has_steps(f))
    return Steps(CpuParams(**sizes)).apply(func.with_attr("global_symbol", "main"), CPU).mod["main"].script()


def check(model) -> None:
    """Compiled by this package the model computes what ONNX Runtime computes."""
    mod = from_onnx(model)
    x = np.random.default_rng(0).standard_normal([int(n) for n in mod["main"].params[0].ty.shape]).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, right in zip(compile(mod, CPU).run(x), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(np.asarray(mine).reshape(right.shape), right, rtol=1e-5, atol=1e-5)


# Hidden units, sequences of a batch, directions.
SIZES = [(1, 1, 1), (16, 1, 2), (40, 3, 1), (127, 2, 2), (64, 7, 1), (96, 8, 1), (256, 4, 1)]


@pytest.mark.parametrize(("size", "op"), singles(SIZES, ["RNN", "GRU", "LSTM"]), ids=str)
def test_layers_of_any_size(op, size):
    hidden, batch, ways = size
    check(recurrent_layer(op, hidden, 3, batch, ways))


@pytest.mark.parametrize("ways", [1, 2])
def test_a_reset_after_the_product(ways):
    check(recurrent_layer("GRU", 48, 4, 5, ways, linear_before_reset=1))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_sequences_that_end_before_the_others(op):
    check(recurrent_layer(op, 48, 5, 4, 2, lengths=[5, 0, 2, 3]))


def test_units_are_lanes_of_vectors_and_sequences_share_a_load():
    script = scheduled(recurrent_layer("LSTM", 32, 2, 6), lanes=16, registers=32)
    assert "T.vectorized(T.int64(16))" in script and "T.unroll(T.int64(6))" in script


def test_of_one_sequence_blocks_of_units_are_side_by_side():
    assert "T.unroll(T.int64(6))" in scheduled(recurrent_layer("LSTM", 96, 2, 1), lanes=16, registers=32)


def test_sequences_of_several_lengths_are_not_side_by_side():
    script = scheduled(recurrent_layer("LSTM", 16, 2, 6, lengths=[2, 1, 2, 2, 2, 2]), lanes=16, registers=32)
    assert "T.unroll(T.int64(6))" not in script and "T.vectorized(T.int64(16))" in script


@pytest.mark.parametrize(("hidden", "parallel"), [(64, False), (512, True)])
def test_threads_share_what_is_worth_waking_them(hidden, parallel):
    assert ("T.parallel" in scheduled(recurrent_layer("LSTM", hidden, 2, 1))) == parallel


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_gates_are_clipped_and_cells_are_not(op):
    """An LSTM's cell grows beyond the clip in some steps."""
    check(recurrent_layer(op, 32, 12, 3, clip=0.5))
