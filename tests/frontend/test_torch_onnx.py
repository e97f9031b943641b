# SPDX-License-Identifier: Apache-2.0
"""What torch's exporter is given, and what becomes of its weights."""

import numpy as np
import onnx
import pytest
from onnx import helper

from smartmem_tvm.frontend.torch_onnx import cause_of, model_of
from torch_stand_in import Program, install

WEIGHT = np.random.default_rng(0).standard_normal((128, 256)).astype("float32")


@pytest.fixture
def exporter(monkeypatch, tmp_path):
    value = helper.make_tensor_value_info
    initializers = [onnx.numpy_helper.from_array(WEIGHT, "w"), onnx.numpy_helper.from_array(WEIGHT[0], "b")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    graph = helper.make_graph(nodes, "linear", [value("x", 1, [2, 128])], [value("y", 1, [2, 256])], initializers)
    onnx.save(helper.make_model(graph), tmp_path / "linear.onnx")
    return install(monkeypatch, tmp_path / "linear.onnx")


@pytest.mark.parametrize("keep", [False, True])
def test_large_weights_are_apart_and_shared_where_nobody_changes_them(exporter, keep):
    program = Program()
    model = model_of(program, "m", keep)
    assert model.program is program and list(model.weights) == ["w"]
    large, small = model.proto.graph.initializer
    assert not large.raw_data and list(large.dims) == [128, 256]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(small), WEIGHT[0])
    np.testing.assert_array_equal(model.weights.array("w"), WEIGHT)
    given = exporter.values["w"]
    aligned = given.ctypes.data % 64 == 0  # TVM's kernels count on it
    assert np.shares_memory(model.weights.array("w"), given) == (keep and aligned)


def test_attention_of_other_dimensions_is_taken_apart_at_once(exporter):
    model_of(Program(rank=3), "m")
    (given, _), *more = exporter.exports
    assert not more and given.decompositions.keys() == {"other", "attention", "view"}
    causal = ("q", "k", "v", None, 0.0, True)
    assert given.decompositions["attention"](*causal) == causal


def test_what_torch_does_not_export_is_tried_with_attention_taken_apart(exporter):
    exporter.refusal, exporter.refused_always = ValueError("Cannot view a tensor\nwith strides"), False
    model_of(Program(), "m")
    assert [given.decompositions is None for given, _ in exporter.exports] == [True, False]


def test_a_view_of_what_lies_in_another_order_is_one_of_a_copy(exporter):
    model_of(Program(rank=5), "m")
    view = exporter.exports[0][0].decompositions["view"]

    class Dense:
        def is_contiguous(self):
            return True

    assert view(Dense(), [4]) is NotImplemented


def test_the_cause_is_what_is_said_of_an_error(exporter):
    exporter.refusal = ValueError("Cannot view a tensor.\nMore")
    with pytest.raises(RuntimeError, match="advice") as caught:
        model_of(Program(), "m")
    assert cause_of(caught.value) == "Cannot view a tensor" and cause_of(KeyError()) == "KeyError"


def test_a_result_of_another_type_than_the_programs_is_no_model(exporter, monkeypatch):
    program = Program()
    monkeypatch.setattr(program, "run_decompositions", lambda table: program)
    program.graph.nodes[-1].args[0][0].meta["val"].dtype = "torch.float16"
    with pytest.raises(TypeError, match="makes 'y' float, where the program has float16"):
        model_of(program, "m")
