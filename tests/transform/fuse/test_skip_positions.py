# SPDX-License-Identifier: Apache-2.0
"""Kernels that leave out positions behind a length: which do, what is left out, and what the loops look like."""

import numpy as np
import pytest
import tvm

from open_models import N, behind, compiled, dims, drawn, expected, model, sentence, weights
from smartmem_tvm import Options, optimize
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import POSITIONS
from smartmem_tvm.pipeline import lower_phases, run_phases
from smartmem_tvm.target import host_target


def decisions(graph):
    return {each["into"][0]: each["reason"] for each in read_log(graph) if each["pass"] == "SkipPositions"}


def marked(graph):
    return [
        tuple(map(int, func.attrs[POSITIONS]))
        for func in graph.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc) and POSITIONS in (func.attrs or {})
    ]


def graph_of(proto, span="15..16"):
    return optimize(from_onnx(proto, dims(proto, span)))


def scheduled(graph):
    target = host_target()
    with target:
        return run_phases(graph, lower_phases(target)[:1], Options())


def test_rows_of_layers_before_a_mean():
    nodes = [
        ("MatMul", ["x", "w"], "a", {}),
        ("Relu", ["a"], "b", {}),
        ("MatMul", ["b", "v"], "c", {}),
        ("Tanh", ["c"], "d", {}),
        ("ReduceMean", ["d"], "y", {"axes": [1]}),
    ]
    graph = graph_of(model(nodes, [1, N, 32], {"w": weights(32, 48), "v": weights(48, 32)}))
    assert len(decisions(graph)) == 2  # both products; the mean itself has no positions
    assert sorted(each[2] for each in marked(graph)) == [0, 0]  # the mean reads zeros behind the length by itself
    text = scheduled(graph).script()
    assert text.count("< length") + text.count("< n") >= 2 and "for behind" not in text


def test_values_of_attention_are_zeros():
    graph = graph_of(sentence(width=32))
    reasons = list(decisions(graph).values())
    assert sum("but as zeros" in each for each in reasons) >= 1
    assert sum("but as zeros" not in each for each in reasons) >= 1


def test_what_something_else_reads_is_computed():
    nodes = [("MatMul", ["x", "w"], "a", {}), ("Exp", ["a"], "e", {}), ("ReduceMax", ["e"], "y", {"axes": [1]})]
    graph = graph_of(model(nodes, [1, N, 8], {"w": weights(8, 8)}))
    assert all("but as zeros" not in each for each in decisions(graph).values())


def test_functions_without_a_length_stay():
    graph = optimize(from_onnx(sentence(), {"x": (1, 16)}))
    assert not decisions(graph) and not marked(graph)


@pytest.mark.parametrize("length", [1, 5, 16])
def test_results_behind_the_length_are_not_written(length):
    nodes = [("MatMul", ["x", "w"], "m", {}), ("Softmax", ["m"], "s", {"axis": 1}), ("MatMul", ["s", "v"], "y", {})]
    proto = model(nodes, [1, N, 24], {"w": weights(24, 24), "v": weights(24, 24)})
    found = compiled(proto, "1..16")
    x = np.full((1, 16, 24), np.nan, "float32")
    x[:, :length] = weights(1, length, 24)
    function = found.open[0]["tiles"][-1]["function"]
    (got,) = found.run(x, np.array([length]), function=function)
    assert np.isfinite(got[:, :length]).all()
    np.testing.assert_allclose(got[:, :length], found.run(x[:, :length])[0], rtol=1e-5, atol=1e-6)


def drawn_picture(random):
    """Convolutions of a picture of n columns, dense, by channel and of single places, with strides, and a pool."""
    channels, lines, taps = (int(random.choice(each)) for each in ((8, 16, 32), (1, 3, 6), (1, 3, 5)))
    wide, strides = int(random.choice((8, 24, 40))), random.choice((1, 2), 2).tolist()
    constants = {
        "a": weights(wide, 3, 3, 3),
        "b": weights(wide, 1, taps, taps, seed=1),
        "c": weights(channels, wide, 1, 1, seed=2),
        "d": weights(channels, 1, 3, 3, seed=3),
        "e": weights(6, channels, 1, 1, seed=4),
    }
    nodes = [
        ("Conv", ["x", "a"], "a0", {"pads": [1] * 4, "strides": [1, strides[0]]}),
        ("HardSwish", ["a0"], "a1", {}),
        ("Conv", ["a1", "b"], "b0", {"pads": [taps // 2] * 4, "group": wide}),
        ("Relu", ["b0"], "b1", {}),
        ("Conv", ["b1", "c"], "c0", {}),
        ("Relu", ["c0"], "c1", {}),
        ("Conv", ["c1", "d"], "d0", {"pads": [1] * 4, "group": channels, "strides": [1, strides[1]]}),
        ("MaxPool", ["d0"], "d1", {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1]}),
        ("Conv", ["d1", "e"], "e0", {}),
        ("ReduceMean", ["e0"], "y", {"axes": [2], "keepdims": 0}),
    ]
    return model(nodes, [1, 3, lines, N], constants)


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_drawn_pictures_end_behind_the_length(seed):
    random = np.random.default_rng(seed)
    most, proto = int(random.integers(17, 60)), drawn_picture(random)
    found = compiled(proto, f"{most - 1}..{most}")
    (function,) = (each["function"] for each in found.open[0]["tiles"] if each["items"] == most)
    names = [decision["into"][0] for decision in read_log(found.graph) if decision["pass"] == "SkipPositions"]
    assert len(names) >= 3
    for length in (6, most // 2, most - 1, most):
        x = drawn(proto, length, length)
        wanted, whole = expected(proto, x), behind(x, most, 3)
        (got,) = found.run(whole, np.array([length]), function=function)
        np.testing.assert_allclose(got[..., : wanted.shape[-1]], wanted, rtol=1e-4, atol=1e-4)


def test_windows_mask_what_they_read():
    nodes = [
        ("Conv", ["x", "a"], "c", {}),
        ("Relu", ["c"], "r", {}),
        ("Conv", ["r", "b"], "y", {"pads": [1] * 4, "group": 16}),
    ]
    graph = graph_of(model(nodes, [1, 16, 6, N], {"a": weights(16, 16, 1, 1), "b": weights(16, 1, 3, 3)}), "31..32")
    assert {each[1] for each in marked(graph)} <= {1, 3} and len(marked(graph)) == 2
    assert "n * T.int64(6)" in scheduled(graph).script()  # positions are outermost: rows before the length


@pytest.mark.parametrize("taps", [3, 5])
def test_zeros_that_windows_read_are_written_once(taps):
    """The kernel before two windows writes zeros as far as they read behind the length, and no further."""
    around = {"pads": [taps // 2] * 4, "group": 16}
    nodes = [
        ("Conv", ["x", "a"], "c", {}),
        ("Conv", ["c", "b"], "d", around),
        ("Conv", ["c", "e"], "f", {"pads": [1] * 4, "group": 16}),
        ("Relu", ["f"], "g", {}),
        ("Add", ["d", "g"], "y", {}),
    ]
    constants = {"a": weights(16, 16, 1, 1), "b": weights(16, 1, taps, taps), "e": weights(16, 1, 3, 3)}
    graph = graph_of(model(nodes, [1, 16, 6, N], constants), "31..32")
    assert max(each[2] for each in marked(graph)) == taps // 2
    assert "for behind" in scheduled(graph).script()
