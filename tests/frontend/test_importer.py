# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnx
import pytest
import tvm
from onnx import ModelProto, helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, input_spec, output_names

FLOATS = "float32"


def test_names_of_the_file_are_kept(build, assert_same):
    tensor = ((2, 3), FLOATS)
    nodes = [helper.make_node("Neg", ["input.1"], ["3"]), helper.make_node("Abs", ["input.1"], ["out/abs"])]
    model = build(nodes, {"input.1": tensor}, {"3": tensor, "out/abs": tensor})
    mod = from_onnx(model)
    assert input_spec(mod) == {"input.1": tensor}
    assert output_names(mod) == ["3", "out/abs"]
    assert_same(model, mod)


def test_results_carry_the_names_of_their_nodes(build):
    tensor = ((2, 3), FLOATS)
    nodes = [
        helper.make_node("Neg", ["x"], ["t"], name="/block.0/neg"),
        helper.make_node("Abs", ["t"], ["y"], name="/block.0/abs"),
    ]
    mod = from_onnx(build(nodes, {"x": tensor}, {"y": tensor}))
    names = [binding.var.name for binding in mod["main"].body.blocks[0].bindings]
    assert names == ["block_0_neg", "block_0_abs", "block_0_abs"]  # the last one is the result


def test_a_damaged_name_does_no_harm(relu_model):
    content = relu_model.SerializeToString()
    damaged = content.replace(b"\x04relu", b"\x04re\xff\xff")
    assert damaged != content
    names = [binding.var.name for binding in from_onnx(ModelProto.FromString(damaged))["main"].body.blocks[0].bindings]
    assert names[0] == "re"


def test_weights_are_constants_and_shapes_static(build):
    tensor = ((2, 3), FLOATS)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    mod = from_onnx(build(nodes, {"x": tensor}, {"y": tensor}, {"w": np.ones((2, 3), FLOATS)}))
    assert len(mod["main"].params) == 1
    assert isinstance(mod["main"].body.blocks[0].bindings[0].value.args[1], tvm.ir.GenericConst)


def test_a_shape_that_depends_on_data_is_refused_by_node(build):
    node = helper.make_node("NonZero", ["x"], ["y"], name="where")
    model = build([node], {"x": ((2, 3), FLOATS)}, {"y": ((2, None), "int64")})
    with pytest.raises(UserError, match=r"NonZero \(node where\).*run-time data"):
        from_onnx(model)


def test_a_refusal_says_the_shapes_and_not_what_an_operator_is(build):
    node = helper.make_node("Add", ["x", "y"], ["z"], name="sum")
    model = build([node], {"x": ((1, 3, 7), FLOATS), "y": ((2, 4), FLOATS)}, {"z": ((2, 4), FLOATS)})
    with pytest.raises(UserError, match=r"Add \(node sum\) cannot be imported, the first input shape at dim 2 is 7"):
        from_onnx(model)


def test_what_tvm_refuses_is_named_by_node(build, capfd):
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], name="frame")]
    inputs = {"x": ((2, 3), FLOATS), "pads": ((4,), "int64")}
    model = build(nodes, inputs, {"y": ((None, None), FLOATS)})
    with pytest.raises(UserError, match=r"Pad \(node frame\).*Dynamic pads") as caught:
        from_onnx(model)
    assert caught.value.__cause__ is not None
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_tvm_global_table_is_not_changed(relu_model):
    from tvm.relax.frontend.onnx import onnx_frontend

    before = onnx_frontend._get_convert_map()
    from_onnx(relu_model)
    assert onnx_frontend._get_convert_map() == before


def test_a_choice_at_run_time(build, assert_same):
    def branch(op_type):
        value = helper.make_tensor_value_info("r", 1, (2, 3))
        return helper.make_graph([helper.make_node(op_type, ["x"], ["r"])], op_type, [], [value])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    tensor = ((2, 3), FLOATS)
    model = build([node], {"x": tensor, "c": ((), "bool")}, {"y": tensor})
    mod = from_onnx(model)
    x = np.array([[-1, 2, -3], [4, -5, 6]], FLOATS)
    for condition in (True, False):
        assert_same(model, mod, {"x": x, "c": np.array(condition)})


@pytest.mark.parametrize(
    ("dtype", "shape"), [("int64", (2, 3)), (FLOATS, (3, 2)), (FLOATS, (2, 3, 1)), (FLOATS, ("n", 4))]
)
def test_an_output_that_is_not_what_the_file_says_is_refused(build, dtype, shape):
    node = helper.make_node("Reshape", ["x", "target"], ["y"])
    model = build([node], {"x": ((6,), FLOATS)}, {"y": (shape, dtype)}, {"target": np.array([2, 3])})
    with pytest.raises(UserError, match=r"declares its output 'y'.*compute float32 \[2, 3\]"):
        from_onnx(model)


def test_an_output_with_empty_sizes_has_those_of_its_node(build, assert_same):
    node = helper.make_node("Reshape", ["x", "target"], ["y"])
    model = build([node], {"x": ((6,), FLOATS)}, {"y": ((), FLOATS)}, {"target": np.array([2, 3])})
    assert_same(model, from_onnx(model))


def test_names_may_have_several_lines(build):
    import smartmem_tvm as sm

    node = helper.make_node("Relu", ["a\nb"], ["c\td"], name="e\nf")
    model = build([node], {"a\nb": ((2, 3), FLOATS)}, {"c\td": ((2, 3), FLOATS)})
    np.testing.assert_array_equal(sm.compile(sm.from_onnx(model)).run(np.ones((2, 3), FLOATS))[0], 1)


def test_a_list_without_elements_is_an_attribute(build, assert_same):
    node = helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)
    node.attribute.append(onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS))
    model = build([node], {"x": ((2, 3), FLOATS)}, {"y": ((), FLOATS)}, opset=13)
    assert_same(model, from_onnx(model))


@pytest.mark.parametrize("dtype", ["object", "complex64"])
def test_inputs_that_are_no_real_numbers_are_refused(build, dtype):
    model = build([helper.make_node("Identity", ["x"], ["y"])], {"x": ((2,), dtype)}, {"y": ((2,), dtype)})
    with pytest.raises(UserError, match=r"'[xy]'.*(string|complex64)"):
        from_onnx(model)
