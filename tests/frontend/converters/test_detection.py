# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import smartmem_tvm as sm


def _model(build, most=9, center=0, extra=()):
    inputs = {"boxes": ((2, 12, 4), "float32"), "scores": ((2, 3, 12), "float32")}
    constants = {"most": np.array([most]), "overlap": np.array([0.3], "float32"), "least": np.array([0.2], "float32")}
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["s"], center_point_box=center
    )
    name, last = ("y", [None, 1]) if extra else ("s", [None, 3])
    return build([node, *extra], inputs, {name: (last, "int64")}, constants)


@pytest.mark.parametrize("center", [0, 1])
def test_what_is_selected_is_as_long_as_onnxruntimes(build, center):
    model = _model(build, center=center)
    compiled = sm.compile(sm.from_onnx(model))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random, lengths = np.random.default_rng(0), set()
    for spread in (1, 1, 8):
        boxes = (random.random((2, 12, 4)) * spread).astype("float32")
        scores = np.round(random.random((2, 3, 12)), 1).astype("float32")  # some are equal
        (got,) = compiled.run(boxes, scores)
        np.testing.assert_array_equal(got, session.run(None, {"boxes": boxes, "scores": scores})[0])
        lengths.add(len(got))
    assert len(lengths) > 1


def test_nothing_selected_is_an_empty_tensor(build):
    compiled = sm.compile(sm.from_onnx(_model(build)))
    (got,) = compiled.run(np.zeros((2, 12, 4), "float32"), np.zeros((2, 3, 12), "float32"))
    assert got.shape == (0, 3) and got.dtype == np.int64


def test_what_reads_the_selection_is_refused_by_name(build):
    reader = helper.make_node("ReduceMax", ["s"], ["y"], name="reader", axes=[1])
    with pytest.raises(sm.UserError, match=r"ReduceMax \(node reader\) reads a tensor whose length"):
        sm.from_onnx(_model(build, extra=[reader]))


def test_the_memory_of_the_selection_is_not_used_again(build):
    later = [helper.make_node("CumSum", [f"z{n}", "axis"], [f"z{n + 1}"]) for n in range(4)]
    model = _model(build)
    model.graph.node.extend(later)
    model.graph.input.append(helper.make_tensor_value_info("z0", 7, (54, 3)))  # as much as could be selected
    model.graph.output.append(helper.make_tensor_value_info("z4", 7, (54, 3)))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "axis"))
    random = np.random.default_rng(0)
    arrays = [random.random((2, 12, 4), "float32"), random.random((2, 3, 12), "float32"), np.ones((54, 3), "int64")]
    alone = sm.compile(sm.from_onnx(_model(build))).run(*arrays[:2])
    selected, sums = sm.compile(sm.from_onnx(model)).run(*arrays)
    np.testing.assert_array_equal(selected, alone[0])
    assert sums[-1, 0] == 395010
