# SPDX-License-Identifier: Apache-2.0
"""Sizes of a list that differ in items only: right as kernels of smaller sizes, or functions of their own."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import smartmem_tvm
from open_models import APART, ROWS, N, dims, drawn, encoder, expected, layers, model, sentence, weights
from smartmem_tvm import Options
from smartmem_tvm.analysis import item_cost
from smartmem_tvm.frontend import from_onnx, input_spec
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.several_sizes import REPEATED, size_functions
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.pipeline import phases_of
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import RepeatItems, ShareItems


@pytest.fixture(autouse=True)
def _sizes_run_as_others_wherever_they_can(monkeypatch):
    monkeypatch.setattr(item_cost, "MORE", 1e9)


def at(proto, counts):
    """Return the module of a model at these numbers of items."""
    return from_onnx(proto, [dims(proto, count) for count in counts])


def left_out(mod):
    """Return the sizes that other functions compute: function -> how."""
    return {each["operator"]: each["reason"] for each in read_log(mod) if each["pass"] == "ShareItems"}


@pytest.mark.parametrize("name", APART)
def test_drawn_lists_are_right(name):
    proto, random = APART[name], np.random.default_rng(sorted(APART).index(name))
    counts = list(map(int, random.choice(range(1, 12), 4, replace=False)))
    mod = at(proto, counts)
    compiled = smartmem_tvm.compile(mod)
    assert compiled.sizes == size_functions(mod)
    assert set(left_out(compiled.graph)) == {f"main_{counts.index(each)}" for each in covers_of(counts)}
    for seed, count in enumerate(counts):
        x = drawn(proto, count, seed)
        for found in (compiled.run(x)[0], compiled.session().bind({"x": x}).run()[0]):
            wanted = expected(proto, x)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert all(compiled.size_memory[each]["steps"] for each in compiled.sizes)


def covers_of(counts):
    """Return the numbers of items that smaller ones add up to."""
    sums, found = {0}, []
    own = []
    for count in sorted(counts):
        (found if count in sums else own).append(count)
        sums = {0}
        for _ in range(max(counts)):
            sums |= {a + b for a in sums for b in own if a + b <= max(counts)}
    return found


def test_the_graph_before_and_after():
    mod = at(layers(depth=1), (2, 6))
    shared = ShareItems()(mod)
    assert size_functions(shared) == ["main_0"] and REPEATED in shared.attrs
    assert left_out(shared) == {"main_1": "6 items are 2 + 2 + 2"}
    repeated = RepeatItems()(smartmem_tvm.optimize(mod))
    assert size_functions(repeated) == ["main_0", "main_1"] and REPEATED not in (repeated.attrs or {})
    assert input_spec(repeated, "main_1") == {"x": ((6, 16), "float32")}
    one, three = (graph_cost(repeated, name) for name in ("main_0", "main_1"))
    assert (three.kernels, three.layout_kernels) == (3 * one.kernels + 1, 1)  # rows of 64 bytes need no copies


def test_several_inputs_and_outputs_some_of_which_all_items_have_in_common():
    proto = model([("MatMul", ["x", "w"], "m", {}), ("Add", ["m", "row"], "y", {})], [N, 3, 4], {"w": weights(4, 4)})
    row, same = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("row", "same"))
    proto.graph.input.append(row)
    proto.graph.node.append(helper.make_node("Exp", ["row"], ["same"]))
    proto.graph.output.append(same)
    sizes = [{"x": (count, 3, 4)} for count in (1, 5)]
    compiled = smartmem_tvm.compile(from_onnx(proto, sizes))
    assert left_out(compiled.graph) == {"main_1": "5 items are 1 + 1 + 1 + 1 + 1"}
    x, row = weights(5, 3, 4), weights(4)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, wanted in zip(compiled.run(x, row), session.run(None, {"x": x, "row": row}), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_another_dimension_may_have_a_list_as_well():
    proto = model([("MatMul", ["x", "w"], "m", {}), ("Softmax", ["m"], "y", {"axis": 1})], [N, "length", 4], ROWS)
    sizes = [{"x": (items, length, 4)} for length in (3, 7) for items in (1, 2, 4)]
    compiled = smartmem_tvm.compile(from_onnx(proto, sizes))
    assert set(left_out(compiled.graph)) == {"main_1", "main_2", "main_4", "main_5"}
    for seed, each in enumerate(sizes):
        x = weights(*each["x"], seed=seed)
        np.testing.assert_allclose(compiled.run(x)[0], expected(proto, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "target"),
    [(Options(memory_budget=1_000_000), "cpu"), (Options(caches={"x": "y"}), "cpu"), (Options(), "opencl")],
)
def test_each_size_keeps_its_function(options, target):
    passes = [each for phase in phases_of(None) for each in phase.passes]
    assert passes[:3] == ["choose-tiles", "share-items", "share-lengths"]
    for mod in (at(layers(), (1, 2)), at(sentence(), (4, 8))):
        for name in passes[1:3]:
            assert make_pass(name, options, parse_target(target))(mod).same_as(mod)


def test_lengths_are_not_shared():
    mod = at(sentence(), (4, 8, 12))
    assert size_functions(ShareItems()(mod)) == size_functions(mod)


def test_a_model_that_counts_its_items_is_not_shared():
    nodes = [
        ("Shape", ["x"], "s", {"start": 0, "end": 1}),
        ("Cast", ["s"], "f", {"to": 1}),
        ("Div", ["x", "f"], "y", {}),
    ]
    mod = at(model(nodes, [N, 4]), (1, 2, 4))
    assert size_functions(ShareItems()(mod)) == size_functions(mod)


def test_the_model_of_times_leaves_small_networks_alone(monkeypatch):
    monkeypatch.undo()
    mod = at(encoder(), (1, 2, 3))
    assert size_functions(ShareItems()(mod)) == size_functions(mod)
