# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import evaluate, from_onnx

TENSOR = ((4, 6), "float32")


def test_what_depends_on_sizes_alone_is_folded(build):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Concat", ["s", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Shape", ["r"], ["rs"]),
        helper.make_node("Expand", ["n", "rs"], ["y"]),
    ]
    model = build(nodes, {"x": TENSOR}, {"y": ((6, 4), "int64")}, {"minus": np.array([-1])})
    folded = evaluate.fold(model)
    assert [node.op_type for node in folded.graph.node] == ["Reshape"]  # which nothing reads
    values = {each.name: onnx.numpy_helper.to_array(each) for each in folded.graph.initializer}
    np.testing.assert_array_equal(values["y"], np.full((6, 4), 24))


def test_types_that_onnx_runtime_lacks_are_folded_too(build):
    limits = {name: np.array(value, ml_dtypes.bfloat16) for name, value in (("a", 0), ("b", 3), ("c", 1))}
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    tensor = ((2, 3), ml_dtypes.bfloat16)
    folded = evaluate.fold(build(nodes, {"x": tensor}, {"y": tensor}, limits, opset=27))
    assert [node.op_type for node in folded.graph.node] == ["Add"]


def test_random_numbers_are_not_folded(build):
    nodes = [helper.make_node("RandomNormalLike", ["c"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    model = build(nodes, {"x": TENSOR}, {"y": TENSOR}, {"c": np.zeros((4, 6), "float32")})
    assert evaluate.fold(model) is model


@pytest.mark.parametrize(("op_type", "wanted"), [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf)])
def test_a_reduction_of_nothing_is_its_neutral_number(build, run_tvm, op_type, wanted):
    node = helper.make_node(op_type, ["x", "a"], ["y"], keepdims=0)
    model = build([node], {"x": ((2, 0, 4), "float32")}, {"y": ((2, 4), "float32")}, {"a": np.array([1])}, opset=20)
    got = run_tvm(from_onnx(model), {"x": np.empty((2, 0, 4), "float32")})[0]
    np.testing.assert_array_equal(got, np.full((2, 4), wanted))


def test_a_slice_of_nothing_adds_nothing(build, assert_same):
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["none"]),
        helper.make_node("Relu", ["none"], ["still none"]),
        helper.make_node("Concat", ["still none", "x"], ["y"], axis=1),
    ]
    constants = {"from": np.array([5]), "to": np.array([4]), "axis": np.array([1])}
    model = build(nodes, {"x": TENSOR}, {"y": TENSOR}, constants)
    assert_same(model, from_onnx(model), tolerance=0)


def test_a_module_may_return_nothing(build):
    import smartmem_tvm as sm

    node = helper.make_node("Slice", ["x", "from", "to", "axis"], ["y"])
    constants = {"from": np.array([5]), "to": np.array([4]), "axis": np.array([1])}
    model = build([node], {"x": TENSOR}, {"y": ((4, 0), "float32")}, constants)
    result = sm.compile(sm.from_onnx(model)).run(np.ones((4, 6), "float32"))[0]
    assert (result.shape, result.dtype) == ((4, 0), np.float32)


def test_constants_given_as_attributes_count_as_known(build):
    nodes = [
        helper.make_node("Constant", [], ["c"], value_ints=[6, 4]),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "d"], ["y"]),
    ]
    folded = evaluate.fold(build(nodes, {"x": TENSOR}, {"y": ((6, 4), "float32")}))
    assert [node.op_type for node in folded.graph.node] == ["Reshape"]


def test_weights_that_are_kept_apart_are_not_looked_at(build, run_tvm):
    weight = np.ones((4, 30_000), "float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Concat", ["m", "w"], ["y"], axis=0)]
    model = build(nodes, {"x": ((0, 4), "float32")}, {"y": ((4, 30_000), "float32")}, {"w": weight})
    np.testing.assert_array_equal(run_tvm(from_onnx(model), {"x": np.empty((0, 4), "float32")})[0], weight)


@pytest.mark.parametrize("sizes", [[0, 2**62, 2**62], [2**40, 0, 2**40, 3]])
def test_sizes_that_no_array_has_are_refused_beside_an_empty_one_too(build, sizes):
    ends = {"x": (sizes, "float32")}, {"n": ((), "int64")}
    with pytest.raises(UserError, match=r"Input 'x' of tiny has .* is the most that kernels index"):
        from_onnx(build([helper.make_node("Size", ["x"], ["n"])], *ends))
    nodes = [helper.make_node("Expand", ["x", "s"], ["big"], "expand"), helper.make_node("Size", ["big"], ["n"])]
    ends = {"x": ([1] * len(sizes), "float32")}, {"big": (sizes, "float32"), "n": ((), "int64")}
    with pytest.raises(UserError, match=r"operator Expand \(node expand\)"):
        from_onnx(build(nodes, *ends, {"s": np.array(sizes)}))


def test_more_elements_than_a_number_counts_are_not_counted(build):
    nodes = [helper.make_node("Expand", ["x", "s"], ["big"], "expand"), helper.make_node("Size", ["big"], ["n"])]
    ends = {"x": ((1, 1), "float32")}, {"n": ((), "int64")}
    with pytest.raises(UserError, match=r"operator Expand \(node expand\).* is the most that kernels index"):
        from_onnx(build(nodes, *ends, {"s": np.array([2**40, 2**40])}))


@pytest.mark.parametrize("number", [TensorProto.UNDEFINED, TensorProto.STRING])
def test_what_is_empty_and_of_no_type_is_not_known(build, number):
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Custom", ["x"], ["c"], domain="own")]
    model = build(nodes, {"x": ((0, 3), "float32")}, {"s": ((2,), "int64")}, domains=["own"])
    model.graph.value_info.append(helper.make_tensor_value_info("c", number, (0, 3)))
    assert [node.op_type for node in evaluate.fold(model).graph.node] == ["Custom"]
