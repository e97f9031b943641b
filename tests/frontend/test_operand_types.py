# SPDX-License-Identifier: Apache-2.0
"""What ONNX's schemas say of the numbers that operators take."""

import onnx
import pytest
from onnx import helper

import smartmem_tvm
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.operand_types import kind_of, misfit


@pytest.mark.parametrize(
    "dtype, kind",
    [("bool", "truth values"), ("uint8", "integers"), ("int4", "integers"), ("float16", "floats"), ("string", None)],
)
def test_kinds(dtype, kind):
    assert kind_of(dtype) == kind


@pytest.mark.parametrize(
    "op, dtypes, said",
    [
        ("BitwiseNot", ["float32"], "its input 0 has floats, and BitwiseNot takes integers"),
        ("PRelu", ["float32", "int64"], "numbers of one type"),
        ("Where", ["float32", "int64", "int64"], "its input 0 has floats"),
        ("Concat", ["int64", "int64", "float32"], "numbers of one type"),
        ("Gather", ["float32", "float32"], "its input 1 has floats"),
    ],
)
def test_what_does_not_fit(op, dtypes, said):
    assert said in misfit(op, 18, dtypes)


@pytest.mark.parametrize(
    "op, dtypes",
    [
        ("Where", ["bool", "int64", "int64"]),
        ("Gather", ["float32", "int64"]),
        ("Clip", ["float32", None, "float32"]),
        ("Loop", [None, "bool", "float32", "int64"]),
        ("SequenceAt", [None, "int64"]),
        ("NoSuchOperator", ["float32"]),
        ("QuantizeLinear", ["float32", "float32", "uint8"]),
    ],
)
def test_what_fits_or_is_not_known(op, dtypes):
    assert misfit(op, 18, dtypes) is None


def test_a_model_with_such_a_node_is_refused_by_its_name():
    node = helper.make_node("BitwiseNot", ["x"], ["y"], name="flip")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(UserError, match=r"BitwiseNot \(node flip\) is wrong: its input 0 has floats"):
        smartmem_tvm.from_onnx(model)
