# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, unsupported_operators

FLOATS = "float32"
SQUARE = ((4, 4), FLOATS)


def test_every_unsupported_operator_is_named_with_its_nodes_in_one_error(build):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["a"], name="first"),
        helper.make_node("RandomNormalLike", ["x"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["c"], name="fine"),
        helper.make_node("Multinomial", ["c"], ["d"], name="dice"),
        helper.make_node("Magic", ["d"], ["y"], domain="my.own"),
    ]
    model = build(nodes, {"x": SQUARE}, {"y": ((), FLOATS)}, domains=["my.own"])
    assert ("RandomNormalLike", "first") in unsupported_operators(model)
    with pytest.raises(UserError) as caught:
        from_onnx(model)
    text = str(caught.value)
    assert "RandomNormalLike (first, second)" in text and "my.own.Magic (y)" in text and "fine" not in text


def test_nested_graphs_are_searched(build):
    def branch(op_type):
        value = helper.make_tensor_value_info("r", 1, ())
        return helper.make_graph([helper.make_node(op_type, ["x"], ["r"], name=op_type)], "b", [], [value])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("RandomNormalLike"), else_branch=branch("ReduceSum"))
    model = build([node], {"x": SQUARE, "c": ((), "bool")}, {"y": ((), FLOATS)})
    assert unsupported_operators(model) == [("RandomNormalLike", "RandomNormalLike")]


def test_what_a_loop_holds_is_named(build):
    body = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["s"], ["d"], name="inner"), helper.make_node("Identity", ["c"], ["c2"])],
        "body",
        [helper.make_tensor_value_info(*each) for each in (("i", 7, ()), ("c", 9, ()), ("s", 1, (4, 4)))],
        [helper.make_tensor_value_info(*each) for each in (("c2", 9, ()), ("s", 1, (4, 4)), ("d", 1, ()))],
    )
    node = helper.make_node("Loop", ["n", "c", "x"], ["final", "y"], name="loop", body=body)
    inputs = {"x": SQUARE, "n": ((), "int64"), "c": ((), "bool")}
    model = build([node], inputs, {"y": ((None,), FLOATS)})
    assert unsupported_operators(model) == [("RandomNormalLike", "inner")]


def test_an_operator_of_a_foreign_domain_is_not_taken_for_onnx_own(build):
    node = helper.make_node("Relu", ["x"], ["y"], domain="my.own", name="other")
    model = build([node], {"x": SQUARE}, {"y": SQUARE}, domains=["my.own"])
    assert unsupported_operators(model) == [("my.own.Relu", "other")]


def test_operators_of_onnx_runtime_that_tvm_knows_are_supported(build):
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    model = build([node], {"x": SQUARE}, {"y": SQUARE}, domains=["com.microsoft"])
    assert unsupported_operators(model) == []


def test_functions_of_the_model_are_inlined(build, operators, assert_same):
    double = helper.make_function(
        "my.own",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    node = helper.make_node("Double", ["x"], ["y"], domain="my.own")
    model = build([node], {"x": SQUARE}, {"y": SQUARE}, domains=["my.own"], functions=[double])
    mod = from_onnx(model)
    assert operators(mod) == ["add"]
    assert_same(model, mod)


def test_onnx_attention_which_tvm_takes_for_another_is_expanded(build, assert_same):
    tensor = ((1, 2, 8, 16), FLOATS)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    model = build([node], dict.fromkeys("qkv", tensor), {"y": tensor}, opset=23)
    assert_same(model, from_onnx(model), tolerance=1e-5)


@pytest.mark.parametrize(
    ("op_type", "attributes", "opset"),
    [("Celu", {}, 17), ("Celu", {"alpha": 2.0}, 17), ("Swish", {}, 24), ("Swish", {"alpha": 0.5}, 24)],
)
def test_an_operator_that_onnx_defines_by_others_is_expanded(build, run_tvm, op_type, attributes, opset):
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    model = build([node], {"x": SQUARE}, {"y": SQUARE}, opset=opset)
    x = np.linspace(-3, 3, 16, dtype=FLOATS).reshape(4, 4)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_tvm(from_onnx(model), {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


def test_an_unsupported_operator_in_a_function_is_named_by_both(build):
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("RandomNormalLike", ["b"], ["c"], name="inner")]
    function = helper.make_function("my.own", "Block", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    calls = [helper.make_node("Block", ["x"], [out], domain="my.own", name=out) for out in ("y", "z")]
    outputs = {"y": ((), FLOATS), "z": ((), FLOATS)}
    model = build(calls, {"x": SQUARE}, outputs, domains=["my.own"], functions=[function])
    with pytest.raises(UserError, match=r"RandomNormalLike \(inner of function Block\);"):
        from_onnx(model)
