# SPDX-License-Identifier: Apache-2.0
"""Kernels that leave out positions behind a length: which do, what is left out, and what the loops look like."""

import numpy as np
import pytest
import tvm

import smartmem_tvm
from open_models import N, dims, model, sentence, weights
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
    assert sorted(each[2] for each in marked(graph)) == [0, 1]  # the sum of the mean needs zeros
    text = scheduled(graph).script()
    assert text.count("< length") + text.count("< n") >= 2 and "behind" in text


def test_values_of_attention_are_zeros():
    graph = graph_of(sentence(width=32))
    reasons = list(decisions(graph).values())
    assert sum("but as zeros" in each for each in reasons) >= 1
    assert sum("but as zeros" not in each for each in reasons) >= 2


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
    compiled = smartmem_tvm.compile(from_onnx(proto, dims(proto, "1..16")))
    x = np.full((1, 16, 24), np.nan, "float32")
    x[:, :length] = weights(1, length, 24)
    function = compiled.open[0]["tiles"][-1]["function"]
    (found,) = compiled.run(x, np.array([length]), function=function)
    assert np.isfinite(found[:, :length]).all()
    np.testing.assert_allclose(found[:, :length], compiled.run(x[:, :length])[0], rtol=1e-5, atol=1e-6)
