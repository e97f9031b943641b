# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm as sm
from against_onnxruntime import model_of
from smartmem_tvm.frontend import check_inputs, input_spec
from smartmem_tvm.frontend.bytes import keep_in_bytes

CODES = np.arange(12, dtype="uint8").reshape(3, 4).view(ml_dtypes.float8_e4m3fn)


def test_inputs_and_outputs_have_the_types_of_the_file():
    node = helper.make_node("Transpose", ["x"], ["y"])
    mod = sm.from_onnx(model_of([node], {"x": CODES}, {"y": (CODES.dtype, (4, 3))}))
    assert input_spec(mod) == {"x": ((3, 4), "float8_e4m3fn")}
    (given,) = check_inputs(mod, {"x": CODES})
    (got,) = sm.compile(mod).run(given)
    assert got.dtype == CODES.dtype
    np.testing.assert_array_equal(got.view("uint8"), CODES.T.view("uint8"))


def test_another_type_is_refused():
    mod = sm.from_onnx(
        model_of([helper.make_node("Transpose", ["x"], ["y"])], {"x": CODES}, {"y": (CODES.dtype, (4, 3))})
    )
    with pytest.raises(sm.UserError, match="takes float8_e4m3fn"):
        check_inputs(mod, {"x": CODES.view("uint8")})


def test_types_go_through_what_moves_and_into_branches():
    """A constant, a movement, and both branches of an If."""
    branch = [helper.make_node("Identity", ["t"], ["b"])]
    result = helper.make_tensor_value_info("b", TensorProto.INT4, [4, 3])
    branches = {name: helper.make_graph(branch, name, [], [result]) for name in ("then_branch", "else_branch")}
    value = numpy_helper.from_array(np.arange(-6, 6, dtype="int8").reshape(3, 4).astype("int4"))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Transpose", ["c"], ["t"]),
        helper.make_node("If", ["x"], ["i"], **branches),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": np.array(True)}, {"y": ("float32", (4, 3))})
    assert keep_in_bytes(model, "m") == dict.fromkeys("ctib", "int4")
    assert numpy_helper.to_array(model.graph.node[0].attribute[0].t).dtype == "int8"
    assert branches["then_branch"].output[0].type.tensor_type.elem_type == TensorProto.INT4
    assert model.graph.node[2].attribute[0].g.output[0].type.tensor_type.elem_type == TensorProto.INT8


def test_arithmetic_is_refused():
    node = helper.make_node("Add", ["x", "x"], ["y"], name="sum")
    with pytest.raises(sm.UserError, match=r"Add \(node sum\) reads float8_e4m3fn.*cast it"):
        sm.from_onnx(model_of([node], {"x": CODES}, {"y": (CODES.dtype, CODES.shape)}))
