# SPDX-License-Identifier: Apache-2.0
"""Random input that a model can make sense of."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.cli.model import parse_shapes
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.inputs import id_limits, random_inputs

SPEC = {
    "x": ((2, 300), "float32"),
    "half": ((3,), "float16"),
    "ids": ((2, 300), "int64"),
    "flags": ((2, 300), "int32"),
    "attention_mask": ((2, 5), "int64"),
    "keep": ((4,), "bool"),
    "scalar": ((), "float32"),
}


def test_kinds():
    arrays = random_inputs(SPEC, {"ids": 7})
    for name, (shape, dtype) in SPEC.items():
        assert (np.shape(arrays[name]), arrays[name].dtype) == (shape, dtype)
    assert set(np.unique(arrays["ids"])) == set(range(7))
    assert set(np.unique(arrays["flags"])) == {0, 1}
    assert arrays["attention_mask"].all() and arrays["keep"].all()
    assert abs(arrays["x"].mean()) < 0.2 and 0.8 < arrays["x"].std() < 1.2


def test_seed():
    first, same, other = (random_inputs(SPEC, {}, seed)["x"] for seed in (3, 3, 4))
    assert (first == same).all() and (first != other).any()


def test_id_limits_follow_the_indices():
    value = helper.make_tensor_value_info
    table = numpy_helper.from_array(np.zeros((30, 4), "float32"), "table")
    wide = numpy_helper.from_array(np.zeros((4, 9), "float32"), "wide")
    nodes = [
        helper.make_node("Cast", ["ids"], ["long"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "long"], ["rows"]),
        helper.make_node("Gather", ["wide", "both"], ["columns"], axis=-1),
        helper.make_node("Gather", ["table", "both"], ["more"]),
        helper.make_node("Gather", ["rows", "position"], ["row"]),
    ]
    inputs = [value(name, TensorProto.INT64, [5]) for name in ("ids", "both", "position")]
    graph = helper.make_graph(nodes, "g", inputs, [value("row", 1, None)], [table, wide])
    assert id_limits(helper.make_model(graph)) == {"ids": 30, "both": 9}


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        ([], {}),
        (["x:1,3,224,224"], {"x": (1, 3, 224, 224)}),
        (["serving:0:4"], {"serving:0": (4,)}),
        (["a:1", "b:2,3"], {"a": (1,), "b": (2, 3)}),
        (["s:"], {"s": ()}),
    ],
)
def test_parse_shapes(texts, shapes):
    assert parse_shapes(texts) == shapes


@pytest.mark.parametrize("texts", [["x"], [":1,2"], ["x:1,,2"], ["x:a"], ["x:1.5"], ["x:1", "x:1"]])
def test_parse_shapes_refuses(texts):
    with pytest.raises(UserError, match=r"--shape"):
        parse_shapes(texts)
