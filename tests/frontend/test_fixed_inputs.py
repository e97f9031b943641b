# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm as sm
from smartmem_tvm.frontend import input_spec, read_model, run_onnxruntime
from smartmem_tvm.frontend.fixed_inputs import fix, text_of, without_fixed

RATES = {16000: 3, 8000: 2}


def _shaped_if(tag, source, weights):
    """A convolution, and an If by whether one place is left of it, in which one branch is of another rank."""

    def inner(name, op, *names):
        out = helper.make_value_info(tag + name, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        return helper.make_graph([helper.make_node(op, [*names], [tag + name])], tag + name, [], [out])

    squeezed = inner("squeezed", "Squeeze", tag + "conv", "two")
    return [
        helper.make_node("Conv", [source, weights], [tag + "conv"]),
        helper.make_node("Shape", [tag + "conv"], [tag + "shape"]),
        helper.make_node("Gather", [tag + "shape", "axis"], [tag + "length"]),
        helper.make_node("Equal", [tag + "length", "one"], [tag + "is_one"]),
        helper.make_node(
            "If",
            [tag + "is_one"],
            [tag + "rows"],
            then_branch=squeezed,
            else_branch=inner("same", "Identity", tag + "conv"),
        ),
        helper.make_node("MatMul", [tag + "rows", "m"], [tag + "out"]),
    ]


@pytest.fixture
def detector(build):
    """A model as of a voice detector: an If by the rate, whose branches take windows of other lengths."""

    def branch(tag, weights):
        out = helper.make_tensor_value_info(tag + "out", TensorProto.FLOAT, ["n", 2])
        return helper.make_graph(_shaped_if(tag, "x", weights), tag, [], [out])

    random = np.random.default_rng(0)
    constants = {f"w{rate}": random.standard_normal((8, 4, size)).astype("float32") for rate, size in RATES.items()}
    constants |= {"m": random.standard_normal((8, 2)).astype("float32"), "wide": np.array(16000)}
    constants |= {"two": np.array([2]), "axis": np.array(2), "one": np.array(1)}
    nodes = [
        helper.make_node("Equal", ["sr", "wide"], ["is_wide"]),
        helper.make_node(
            "If", ["is_wide"], ["y"], name="rate", then_branch=branch("a", "w16000"), else_branch=branch("b", "w8000")
        ),
    ]
    inputs = {"x": (("n", 4, "t"), "float32"), "sr": ((), "int64")}
    return build(nodes, inputs, {"y": (("n", 2), "float32")}, constants, opset=16)


@pytest.mark.parametrize("rate", RATES)
def test_the_branch_of_a_value_is_the_model(detector, rate, run_onnx):
    x = np.random.default_rng(1).standard_normal((2, 4, RATES[rate])).astype("float32")
    mod = sm.from_onnx(detector, {"x": x.shape}, values={"sr": rate})
    assert list(input_spec(mod)) == ["x"]
    (want,) = run_onnx(detector, {"x": x, "sr": np.array(rate)})  # the file as it is, with open sizes
    np.testing.assert_allclose(sm.compile(mod).run(x)[0], want, rtol=1e-4, atol=1e-5)
    model = read_model(detector, {"x": x.shape}, values={"sr": rate})
    np.testing.assert_allclose(run_onnxruntime(model, {"x": x})[0], want, rtol=1e-5, atol=1e-5)


def test_without_a_value_the_if_is_named_and_what_to_type(detector):
    with pytest.raises(
        sm.UserError, match=r"it belongs to the If rate, .* input 'sr' decides: .* --value sr=NUMBER\.$"
    ):
        sm.from_onnx(detector, {"x": (1, 4, 3)})


def test_a_value_that_takes_the_wrong_branch_is_no_riddle(detector):
    with pytest.raises(sm.UserError, match="MatMul"):
        sm.from_onnx(detector, {"x": (1, 4, 3)}, values={"sr": 8000})


def test_weights_of_the_other_branch_are_gone(detector):
    model = read_model(detector, {"x": (1, 4, 3)}, values={"sr": 16000})
    assert "w8000" not in {tensor.name for tensor in model.proto.graph.initializer}


def test_an_if_that_numbers_of_the_input_decide_is_named(build):
    """No value of a large input is asked for."""

    def branch(name, axes):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("ReduceMax", ["x"], [name], axes=axes)], name, [], [out])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["condition"]),
        helper.make_node(
            "If", ["condition"], ["y"], name="sign", then_branch=branch("a", [0]), else_branch=branch("b", [1])
        ),
    ]
    zero = {"zero": np.array(0, "float32")}
    model = build(nodes, {"x": ((8, 4), "float32")}, {"y": ((None, None), "float32")}, zero, opset=16)
    with pytest.raises(sm.UserError, match="belongs to the If sign, of which both branches") as caught:
        sm.from_onnx(model)
    assert "--value" not in str(caught.value)


def _nested(random, depth, inputs, number):
    """A graph of an If by one of the inputs, whose branches are such graphs again, on a tensor of two axes."""
    tag = f"g{next(number)}"
    out = helper.make_tensor_value_info(f"{tag}/y", TensorProto.FLOAT, None)
    if not depth:
        axis = int(random.integers(2))
        node = helper.make_node("Softmax" if random.integers(2) else "LogSoftmax", ["x"], [f"{tag}/y"], axis=axis)
        return helper.make_graph([node], tag, [], [out])
    name, limit = inputs[random.integers(len(inputs))], int(random.integers(3))
    branches = [_nested(random, depth - random.integers(1, depth + 1), inputs, number) for _ in range(2)]
    limit = helper.make_node("Constant", [], [f"{tag}/limit"], value=numpy_helper.from_array(np.array(limit)))
    nodes = [
        limit,
        helper.make_node("Greater", [name, f"{tag}/limit"], [f"{tag}/c"]),
        helper.make_node("If", [f"{tag}/c"], [f"{tag}/y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    return helper.make_graph(nodes, tag, [], [out])


@pytest.mark.parametrize("seed", range(12))
def test_nested_branches_drawn_at_random(build, seed):
    random = np.random.default_rng(seed)
    inputs = ["p", "q", "r"][: random.integers(1, 4)]
    graph = _nested(random, 3, inputs, iter(range(1000)))
    tensors = {"x": ((3, 5), "float32"), **dict.fromkeys(inputs, ((), "int64"))}
    model = build(list(graph.node), tensors, {graph.output[0].name: ((3, 5), "float32")}, opset=17)
    values = {name: int(random.integers(4)) for name in inputs}
    x = random.standard_normal((3, 5)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    taken = {each.name for each in session.get_inputs()}
    want = session.run(None, {"x": x, **{name: np.array(value) for name, value in values.items() if name in taken}})
    mod = sm.from_onnx(model, values=values)
    assert list(input_spec(mod)) == ["x"]
    np.testing.assert_allclose(sm.compile(mod).run(x)[0], want[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "held"),
    [
        ((), "int64", 16000, np.array(16000)),
        ((), "int64", 16000.0, np.array(16000)),
        ((1,), "int64", 16000, np.array([16000])),
        (("n",), "int32", [1, 2], np.array([1, 2], "int32")),
        (("n",), "int32", 7, np.array([7], "int32")),
        ((1, "n"), "float32", [1, 2.5], np.array([[1, 2.5]], "float32")),
        ((2, 2), "float32", [1, 2, 3, 4], np.array([[1, 2], [3, 4]], "float32")),
        ((), "bool", True, np.array(True)),
        ((), "bool", 1, np.array(True)),
        ((), "float16", 0.1, np.array(0.1, "float16")),
        ((), "float32", float("inf"), np.array(np.inf, "float32")),
        ((2, 1), "uint8", np.ones((2, 1)), np.ones((2, 1), "uint8")),
    ],
)
def test_values_become_arrays_of_the_input(build, shape, dtype, given, held):
    model = build([helper.make_node("Identity", ["v"], ["y"])], {"v": (shape, dtype)}, {"y": (shape, dtype)})
    (array,) = fix(model, {"v": given}, "tiny").values()
    assert (array.dtype, array.shape) == (held.dtype, held.shape)
    np.testing.assert_array_equal(array, held)
    assert not model.graph.input and model.graph.initializer[0].name == "v"


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "reason"),
    [
        ((), "int64", 0.5, "is no int64"),
        ((), "uint8", 256, "is no uint8"),
        ((), "uint8", -1, "is no uint8"),
        ((), "bool", 2, "is no bool"),
        ((), "float16", 1e6, "is no float16"),
        ((), "int64", [1, 2], "scalar, and its value has 2 numbers"),
        ((3,), "int64", [1, 2], "is 3, and its value has 2"),
        (("n", "m"), "int64", 2, r"is \?x\?"),
        ((), "int64", "16k", "has to be numbers"),
    ],
)
def test_values_that_do_not_fit(build, shape, dtype, given, reason):
    model = build([helper.make_node("Identity", ["v"], ["y"])], {"v": (shape, dtype)}, {"y": (shape, dtype)})
    with pytest.raises(sm.UserError, match=reason):
        fix(model, {"v": given}, "tiny")


def test_a_value_for_no_input(relu_model):
    with pytest.raises(sm.UserError, match="A value is given for 'sr', not an input of tiny; its inputs are: 'x'"):
        read_model(relu_model, values={"sr": 1})


def test_a_default_that_the_file_lists_as_input_takes_another_value(build, run_onnx):
    tensor = ((2,), "float32")
    constants = {"bias": np.array([1, 2], "float32")}
    model = build(
        [helper.make_node("Add", ["x", "bias"], ["y"])], {"x": tensor, "bias": tensor}, {"y": tensor}, constants
    )
    model.ir_version = 3
    mod = sm.from_onnx(model, values={"bias": [5, 6]})
    np.testing.assert_array_equal(sm.compile(mod).run(np.zeros(2, "float32"))[0], [5, 6])


def test_arrays_of_fixed_inputs_hold_their_value():
    arrays = {"x": np.ones(2), "sr": np.array([16000])}
    assert list(without_fixed(arrays, {"sr": 16000})) == ["x"]
    with pytest.raises(sm.UserError, match="'sr' holds 16000, but the model is compiled for 8000; leave it out"):
        without_fixed(arrays, {"sr": np.array(8000)})
    assert text_of(range(10)) == "0,1,2,3,4,5,6,7 and 2 more"
