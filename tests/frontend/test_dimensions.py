# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import TensorProto, helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, input_spec, load_onnx

FLOATS = "float32"


def _add(build, first, second, output):
    node = helper.make_node("Add", ["a", "b"], ["y"])
    return build([node], {"a": (first, FLOATS), "b": (second, FLOATS)}, {"y": (output, FLOATS)})


def refusal(model, shapes=None):
    with pytest.raises(UserError) as caught:
        load_onnx(model, shapes)
    return str(caught.value)


def test_a_symbolic_batch_compiles_right(build, assert_same):
    model = _add(build, ("n", 3), (1, 3), ("n", 3))
    mod = from_onnx(model, {"a": (4, 3)})
    assert input_spec(mod)["a"] == ((4, 3), FLOATS)
    assert_same(model, mod)


def test_a_symbolic_batch_without_value_is_refused_with_what_to_type(build):
    text = refusal(_add(build, ("batch", 3), (1, 3), ("batch", 3)))
    assert "dimension 0 ('batch') of 'a'" in text and "--shape a:1,3" in text


def test_all_open_inputs_are_named_at_once(build):
    text = refusal(_add(build, ("n", None), ("m", 3), (None, 3)))
    assert "dimension 0 ('n') of 'a'" in text and "dimension 1 of 'a'" in text
    assert "--shape a:1,1 --shape b:1,3" in text


def test_a_negative_dimension_is_open_and_quoted(build):
    assert "dimension 0 (written as -1) of 'a'" in refusal(_add(build, (-1, 3), (1, 3), (None, 3)))


def test_a_dimension_of_zero_is_a_size(build):
    model = load_onnx(_add(build, (0, 3), (1, 3), (0, 3)))
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [0, 3]


def test_a_named_dimension_holds_for_every_input(build):
    model = load_onnx(_add(build, ("n", 3), ("n", 3), ("n", 3)), {"a": (5, 3)})
    assert [dim.dim_value for dim in model.graph.input[1].type.tensor_type.shape.dim] == [5, 3]


def test_two_values_for_a_named_dimension_contradict(build):
    text = refusal(_add(build, ("n", 3), ("n", 3), ("n", 3)), {"a": (5, 3), "b": (6, 3)})
    assert "'b'" in text and "dimension 0 is 5" in text


def test_unnamed_dimensions_are_independent(build):
    model = load_onnx(_add(build, (None, 3), (None, 3), (None, 3)), {"a": (5, 3), "b": (1, 3)})
    assert model.graph.input[1].type.tensor_type.shape.dim[0].dim_value == 1


def test_a_shape_against_the_model(build):
    text = refusal(_add(build, (2, 3), (2, 3), (2, 3)), {"a": (4, 3)})
    assert "'a'" in text and "dimension 0 is 2 (2x3)" in text


def test_a_shape_of_another_rank(build):
    assert "has 3 dimensions, but tiny declares 2" in refusal(_add(build, ("n", 3), (1, 3), ("n", 3)), {"a": (1, 1, 3)})


def test_a_size_beyond_64_bits(build):
    assert "beyond 64 bits" in refusal(_add(build, ("n", 3), (1, 3), ("n", 3)), {"a": (10**19, 3)})


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_not_positive(build, size):
    assert "positive" in refusal(_add(build, ("n", 3), (1, 3), ("n", 3)), {"a": (size, 3)})


def test_a_shape_for_an_unknown_input(build):
    text = refusal(_add(build, (2, 3), (2, 3), (2, 3)), {"image": (1, 3)})
    assert "'image'" in text and "'a', 'b'" in text


def test_an_input_without_shape(build, relu_model, assert_same):
    relu_model.graph.input[0].type.tensor_type.ClearField("shape")
    assert "'x' has no shape at all" in refusal(relu_model)
    assert_same(relu_model, from_onnx(relu_model, {"x": (2, 3)}))


def test_stale_shapes_inside_the_graph_are_dropped(build, assert_same):
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    model = build(nodes, {"x": (("n", 3), FLOATS)}, {"y": (("n", 3), FLOATS)})
    model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, ("n", 3)))
    assert not load_onnx(model, {"x": (2, 3)}).graph.value_info
    assert_same(model, from_onnx(model, {"x": (2, 3)}))


def test_an_input_that_is_no_tensor(relu_model):
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, (2,))
    relu_model.graph.input.append(sequence)
    assert "'s' of tiny is a sequence" in refusal(relu_model)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_listed_as_inputs_are_constants(build, assert_same, ir_version):
    weight = np.arange(6, dtype=FLOATS).reshape(2, 3)
    model = build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": ((2, 3), FLOATS), "w": ((2, 3), FLOATS)},
        {"y": ((2, 3), FLOATS)},
        {"w": weight},
    )
    model.ir_version = ir_version
    mod = from_onnx(model)
    assert list(input_spec(mod)) == ["x"]
    x = np.ones((2, 3), FLOATS)
    assert_same(model, mod, {"x": x})


@pytest.mark.parametrize("number", [TensorProto.UNDEFINED, 99, -1])
def test_an_input_without_a_type_of_elements_is_refused(relu_model, number):
    relu_model.graph.input[0].type.tensor_type.elem_type = number
    assert "Input 'x' of tiny has elements of no type that ONNX has" in refusal(relu_model)


@pytest.mark.parametrize("name", ["?", "", "None", "-1", None])
def test_sizes_whose_name_says_nothing_are_independent(build, name, assert_same):
    model = _add(build, (name, name), (name, name), (name, name))
    mod = from_onnx(model, {"a": (4, 3), "b": (1, 3)})
    assert [shape for shape, _ in input_spec(mod).values()] == [(4, 3), (1, 3)]
    assert_same(model, mod)
    assert "dimension 0 of 'b'" in refusal(model, {"a": (4, 3)})  # one of them says nothing of the other


def test_sizes_whose_name_says_nothing_inside_of_the_graph(build, assert_same):
    nodes = [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = build(nodes, {"x": ((2, 3), FLOATS)}, {"y": (("?", "?"), FLOATS)})
    model.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, ("?", "?")))
    assert_same(model, from_onnx(model))


def test_a_name_that_a_program_made_up_gives_way_to_what_a_user_says(build):
    model = _add(build, ("unk__0", 3), ("unk__0", 3), (None, 3))
    assert [shape for shape, _ in input_spec(from_onnx(model, {"a": (4, 3), "b": (1, 3)})).values()] == [(4, 3), (1, 3)]
    assert [shape for shape, _ in input_spec(from_onnx(model, {"a": (4, 3)})).values()] == [(4, 3), (4, 3)]


def test_sizes_that_follow_from_others(build):
    model = _add(build, (1, "2*h"), ("h", 1), (None, None))
    assert "--shape a:1,2 --shape b:1,1" in refusal(model)
    assert input_spec(from_onnx(model, {"b": (3, 1)}))["a"] == ((1, 6), FLOATS)
    assert input_spec(from_onnx(model, {"a": (1, 6)}))["b"] == ((3, 1), FLOATS)
    assert "give them, for example --shape b:1,1" in refusal(model, {"a": (1, 5)})  # no h has it
