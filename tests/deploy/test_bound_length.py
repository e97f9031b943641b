# SPDX-License-Identifier: Apache-2.0
"""Buffers bound at one length of a model that takes any: what each run reads and writes, states, and refusals."""

import numpy as np
import onnx
import pytest
from onnx import helper

import smartmem_tvm
from open_models import sentence
from smartmem_tvm import UserError
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.export import load
from tensor_buffers import Foreign, aligned


def _model() -> onnx.ModelProto:
    """A softmax over the positions, added to a state, and the state's mean; the row is no position."""
    shapes = {"x": ["n", 6], "h": ["n", 6], "row": [6]}
    given = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    results = [
        helper.make_tensor_value_info(name, 1, shape) for name, shape in {"new": ["n", 6], "all": [1, 6]}.items()
    ]
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=0),
        helper.make_node("Mul", ["p", "row"], ["scaled"]),
        helper.make_node("Add", ["scaled", "h"], ["new"]),
        helper.make_node("ReduceMean", ["new"], ["all"], axes=[0]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "m", given, results), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def _expected(x, h, row):
    e = np.exp(x - x.max(0))
    new = e / e.sum(0) * row + h
    return new, new.mean(0, keepdims=True)


@pytest.fixture(scope="module")
def compiled():
    shapes = {"x": ("3..9", 6), "h": ("3..9", 6), "row": (6,)}
    return smartmem_tvm.compile(smartmem_tvm.from_onnx(_model(), shapes=shapes))


@pytest.fixture(params=["compiled", "loaded"])
def session(request, compiled, tmp_path):
    if request.param == "compiled":
        return compiled.session()
    onnx.save(_model(), tmp_path / "m.onnx")
    shapes = [word for text in ("x:3..9,6", "h:3..9,6", "row:6") for word in ("--shape", text)]
    assert main(["compile", str(tmp_path / "m.onnx"), *shapes, "-o", str(tmp_path / "out")]) == 0
    return load(tmp_path / "out").session()


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("kind", [aligned, lambda shape: aligned(shape, off=4), lambda s: Foreign(aligned(s, off=20))])
def test_each_run_reads_the_buffers_and_keeps_the_state(compiled, kind, length):
    x, h, row, mean = (kind(shape) for shape in ((length, 6), (length, 6), (6,), (1, 6)))
    arrays = [each.array if isinstance(each, Foreign) else each for each in (x, h, row, mean)]
    draw = np.random.default_rng(length)
    for each in arrays[:3]:
        each[...] = draw.standard_normal(each.shape)
    bound = compiled.session().bind({"x": x, "h": h, "row": row}, {"all": mean}, {"new": "h"})
    state = first = arrays[1].copy()
    for again in range(3):
        arrays[0][...] = draw.standard_normal((length, 6)) * 3
        arrays[2][...] = draw.standard_normal(6)
        if again == 2:
            bound.reset()
            state = first
        wanted = _expected(arrays[0], state, arrays[2])
        found = bound.run()
        assert found[0].shape == (length, 6) and found[1] is mean
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(arrays[3], wanted[1], rtol=1e-4, atol=1e-5)
        state = wanted[0]


def test_of_a_folder_and_without_a_state(session):
    draw = np.random.default_rng(0)
    arrays = {"x": draw.random((5, 6), "float32"), "h": draw.random((5, 6), "float32"), "row": np.ones(6, "float32")}
    for found, wanted in zip(session.bind(arrays).run(), _expected(*arrays.values()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({"x": (10, 6), "h": (10, 6), "row": (6,)}, {}, "give as many positions as it takes"),
        ({"x": (4, 6), "h": (5, 6), "row": (6,)}, {}, "has 4 positions and input 'h' 5"),
        ({"x": (4, 6), "h": (4, 6)}, {}, "'row'"),
        ({"x": (4, 6), "h": (4, 6), "row": (6,)}, {"other": (4, 6)}, "gives 'new', 'all', and 'other' is none"),
        (
            {"x": (5, 6), "h": (5, 6), "row": (6,)},
            {"new": (8, 6)},
            "is float32 [8, 6], and the output is float32 [5, 6]",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(compiled, inputs, outputs, words):
    buffers = [{name: np.zeros(shape, "float32") for name, shape in each.items()} for each in (inputs, outputs)]
    with pytest.raises(UserError) as found:
        compiled.session().bind(*buffers).run()
    assert words in str(found.value)


def test_one_item_of_a_batch_is_bound_and_several_are_not():
    proto = sentence()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(proto, shapes={"x": ("1..3", "3..5")}))
    x = np.array([[1, 2, 3], [4, 5, 6]])
    bound = compiled.session().bind({"x": x[:1]})
    np.testing.assert_array_equal(bound.run()[0], compiled.run(x[:1])[0])
    with pytest.raises(UserError, match="these inputs have 2 items, each of which takes a call"):
        compiled.session().bind({"x": x})
