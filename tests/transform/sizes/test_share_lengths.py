# SPDX-License-Identifier: Apache-2.0
"""Sizes of a list that differ in a length: right at the capacity of a larger size, or functions of their own."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import smartmem_tvm
from open_models import N, dims, drawn, drawn_chain, expected, model, sentence, weights
from smartmem_tvm.analysis import item_cost, length_cost
from smartmem_tvm.deploy import export
from smartmem_tvm.frontend import from_onnx, input_spec
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.several_sizes import REPEATED, TILE, size_functions, takes_length, with_sizes
from smartmem_tvm.transform import RepeatItems, ShareItems, ShareLengths


@pytest.fixture(autouse=True)
def _sizes_run_as_others_wherever_they_can(monkeypatch):
    monkeypatch.setattr(length_cost, "MORE", 1e9)
    monkeypatch.setattr(length_cost, "_MOST", 1e9)
    monkeypatch.setattr(item_cost, "MORE", 1e9)


def at(proto, lengths):
    """Return the module of a model at these lengths."""
    return from_onnx(proto, [dims(proto, length) for length in lengths])


def left_out(mod):
    """Return the sizes that a larger one computes: function -> how."""
    return {each["operator"]: each["reason"] for each in read_log(mod) if each["pass"] == "ShareLengths"}


def check(proto, lengths, compiled):
    for seed, length in enumerate(lengths):
        x = drawn(proto, length, seed)
        wanted = expected(proto, x)
        for found in (compiled.run(x)[0], compiled.session().bind({"x": x}).run()[0]):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert compiled.open == [] and all(compiled.size_memory[each]["steps"] for each in compiled.sizes)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_chains_at_drawn_lengths(seed):
    random = np.random.default_rng(seed)
    proto = drawn_chain(random)
    lengths = list(map(int, random.choice(range(3, 24), 4, replace=False)))
    mod = at(proto, lengths)
    compiled = smartmem_tvm.compile(mod)
    assert compiled.sizes == size_functions(mod)
    others = {f"main_{number}" for number, length in enumerate(lengths) if length < max(lengths)}
    shared = {each["operator"] for each in read_log(compiled.graph) if each["pass"] in ("ShareLengths", "ShareItems")}
    assert shared == others or not left_out(compiled.graph)  # items add up, where nothing mixes them
    check(proto, lengths, compiled)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_with_strides(stride):
    constants = {"k": weights(4, 3, 3, 3), "m": weights(5, 4, 2, 2, seed=1)}
    nodes = [
        ("Conv", ["x", "k"], "c", {"pads": [1, 1, 1, 1], "strides": [2, stride]}),
        ("Relu", ["c"], "r", {}),
        ("Conv", ["r", "m"], "d", {"strides": [1, stride]}),
        ("Softmax", ["d"], "y", {"axis": 3}),
    ]
    proto, lengths = model(nodes, [1, 3, 6, N], constants), (29, 17, 8, 23)
    compiled = smartmem_tvm.compile(at(proto, lengths))
    assert set(left_out(compiled.graph)) == {"main_1", "main_2", "main_3"}
    check(proto, lengths, compiled)


def test_the_graph_before_and_after():
    mod = at(sentence(), (5, 12, 8))
    shared = ShareLengths()(mod)
    assert size_functions(shared) == ["main_1"] and REPEATED in shared.attrs
    assert takes_length(shared["main_1"])
    assert left_out(shared) == {
        f"main_{number}": f"{length} positions take about as long at a capacity of 12"
        for number, length in ((0, 5), (2, 8))
    }
    repeated = RepeatItems()(smartmem_tvm.optimize(mod))
    assert size_functions(repeated) == ["main_0", "main_1", "main_2"] and REPEATED not in (repeated.attrs or {})
    assert not any(TILE in repeated[name].attrs for name in size_functions(repeated))
    assert input_spec(repeated, "main_0") == {"x": ((1, 5), "int64")}
    own = graph_cost(smartmem_tvm.optimize(from_onnx(sentence(), dims(sentence(), 12))))
    more = [graph_cost(repeated, f"main_{n}").kernels - own.kernels for n in (0, 1, 2)]
    assert more == [0, -1, 0]  # with longer ids; the mask of their vectors is no kernel


def test_lists_of_batches_and_lengths():
    nodes = [("MatMul", ["x", "w"], "m", {}), ("Softmax", ["m"], "y", {"axis": 1})]
    proto = model(nodes, [N, "length", 4], {"w": weights(4, 6)})
    sizes = [{"x": (items, length, 4)} for length in (7, 3) for items in (2, 1)]
    mod = from_onnx(proto, sizes)
    assert size_functions(ShareLengths()(ShareItems()(mod))) == ["main_1"]
    compiled = smartmem_tvm.compile(mod)
    for seed, each in enumerate(sizes):
        x = weights(*each["x"], seed=seed)
        np.testing.assert_allclose(compiled.run(x)[0], expected(proto, x), rtol=1e-5, atol=1e-6)


def test_several_inputs_and_outputs_some_of_which_have_no_positions():
    proto = model([("Softmax", ["x"], "s", {"axis": 0}), ("Add", ["s", "row"], "y", {})], [N, 4])
    proto.graph.input.append(helper.make_tensor_value_info("row", TensorProto.FLOAT, [4]))
    proto.graph.node.append(helper.make_node("Exp", ["row"], ["same"]))
    proto.graph.output.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, [4]))
    compiled = smartmem_tvm.compile(from_onnx(proto, [{"x": (length, 4)} for length in (6, 5)]))
    assert set(left_out(compiled.graph)) == {"main_1"}
    for length in (5, 6):
        x, row = weights(length, 4), weights(4, seed=1)
        got, same = compiled.run(x, row)
        shares = np.exp(x) / np.exp(x).sum(0)
        np.testing.assert_allclose(got, shares + row, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(same, np.exp(row), rtol=1e-5)


def test_a_folder_and_its_sizes(tmp_path):
    proto, lengths = sentence(), (4, 9)
    mod = at(proto, lengths)
    compiled = smartmem_tvm.compile(mod)
    sizes = [
        {"function": name, "inputs": [{"name": "x", "shape": [1, length], "dtype": "int64"}], "outputs": ["y"]}
        for name, length in zip(compiled.sizes, lengths, strict=True)
    ]
    export.save(compiled, tmp_path, {**sizes[0], "sizes": sizes}, {})
    loaded = export.load(tmp_path)
    for length in lengths:
        x = drawn(proto, length)
        np.testing.assert_allclose(loaded.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)


def test_operators_that_do_something_else_along_the_length_keep_each_size():
    nodes = [
        ("Slice", ["x", "last", "first", "axis", "step"], "y", {}),
    ]
    constants = {"last": [-1], "first": [-(2**31)], "axis": [0], "step": [-1]}
    proto = model(nodes, [N, 4], {name: np.array(value) for name, value in constants.items()})
    mod = at(proto, (4, 6))
    assert ShareLengths()(mod).same_as(mod)


def test_a_size_whose_constants_differ_keeps_its_function():
    """A table whose places begin elsewhere for one length is no table of a longer model."""
    mods = []
    for length, first in ((4, 0), (6, 1), (8, 0), (9, 0)):
        table = weights(12, 3)[first : first + length]
        nodes = [("Add", ["x", "t"], "a", {}), ("Softmax", ["a"], "y", {"axis": 0})]
        mods.append(from_onnx(model(nodes, [length, 3], {"t": table})))
    assert set(left_out(ShareLengths()(with_sizes(mods)))) == {"main_0", "main_2"}


def test_the_model_of_times_decides(monkeypatch):
    monkeypatch.undo()
    wide = model(
        [
            ("Transpose", ["x"], "t", {"perm": [1, 0]}),
            ("MatMul", ["x", "t"], "m", {}),
            ("Softmax", ["m"], "s", {"axis": 1}),
            ("MatMul", ["s", "x"], "y", {}),
        ],
        [N, 64],
    )
    mod = at(wide, (64, 128, 1024))
    assert size_functions(ShareLengths()(mod)) == size_functions(mod)  # all keys of the capacity are read
