# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnx
import pytest
from onnx import helper

from smartmem_tvm import light
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, load_onnx

FLOATS = "float32"


def refusal(source, **kwargs):
    """Return the text of the UserError that `load_onnx` raises, which must be one line."""
    with pytest.raises(UserError) as caught:
        load_onnx(source, **kwargs)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


@pytest.fixture
def weighted(build):
    """Return a model that adds a weight of 64x64 floats to its input."""
    tensor = ((64, 64), FLOATS)
    weight = np.arange(64 * 64, dtype=FLOATS).reshape(64, 64)
    return build([helper.make_node("Add", ["x", "w"], ["y"])], {"x": tensor}, {"y": tensor}, {"w": weight})


def test_initializers_of_old_files_need_not_be_inputs(weighted, assert_same):
    weighted.ir_version = 3
    assert_same(weighted, from_onnx(weighted))


@pytest.fixture
def external(weighted, tmp_path):
    """Return the path of that model with its weight in the file `weights.bin` beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(weighted)
    onnx.save_model(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def relocate(path, location):
    """Make a model refer to its external data at another location."""
    model = onnx.load_model(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(model.SerializeToString())


def test_a_model_in_memory_is_not_changed(build):
    tensor = (("n", 3), FLOATS)
    model = build([helper.make_node("Relu", ["x"], ["y"])], {"x": tensor}, {"y": tensor})
    before = model.SerializeToString()
    load_onnx(model, {"x": (2, 3)})
    assert model.SerializeToString() == before


def test_a_missing_file(tmp_path):
    assert "none.onnx: no such file" in refusal(tmp_path / "none.onnx")


def test_a_folder(tmp_path):
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04" + bytes(100)])
def test_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "model.onnx" in refusal(path) and "not an ONNX model" in refusal(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(weighted, tmp_path, part):
    path = tmp_path / "model.onnx"
    content = weighted.SerializeToString()
    path.write_bytes(content[: int(len(content) * part)])
    assert "truncated or not an ONNX model" in refusal(path)


def test_an_empty_graph(build):
    tensor = ((2, 3), FLOATS)
    assert "empty graph" in refusal(build([], {"x": tensor}, {"x": tensor}))


def test_too_new_an_opset(relu_model):
    relu_model.opset_import[0].version = 999
    assert "opset 999" in refusal(relu_model) and "upgrade onnx" in refusal(relu_model)


def test_too_new_an_ir_version(relu_model):
    relu_model.ir_version = 999
    assert "IR version 999" in refusal(relu_model)


def test_a_broken_graph_names_the_missing_tensor(relu_model):
    relu_model.graph.node[0].input[0] = "nowhere"
    assert "not a valid ONNX graph" in refusal(relu_model) and "nowhere" in refusal(relu_model)


def test_no_opset(relu_model):
    del relu_model.opset_import[:]
    assert "not a valid ONNX graph" in refusal(relu_model)


def test_a_tensor_with_too_few_bytes(weighted):
    weighted.graph.initializer[0].raw_data = bytes(8)
    assert "tensor 'w'" in refusal(weighted) and "damaged" in refusal(weighted)


@pytest.mark.parametrize("keep", ["initializer", "Constant", "function"])
def test_a_tensor_with_too_few_numbers(build, keep):
    short = helper.make_tensor("c", onnx.TensorProto.FLOAT, [2], [1, 2])
    short.dims[0] = 3
    constant, add = helper.make_node("Constant", [], ["c"], value=short), helper.make_node("Add", ["x", "c"], ["y"])
    nodes = {
        "initializer": [add],
        "Constant": [constant, add],
        "function": [helper.make_node("f", ["x"], ["y"], domain="own")],
    }
    opsets = [helper.make_opsetid("", 17)]
    functions = [helper.make_function("own", "f", ["x"], ["y"], [constant, add], opsets)] if keep == "function" else []
    model = build(nodes[keep], {"x": ((3,), FLOATS)}, {"y": ((3,), FLOATS)}, domains=["own"], functions=functions)
    model.graph.initializer.extend([short] if keep == "initializer" else [])
    assert "tensor 'c' does not fit its shape [3]" in refusal(model)


def test_a_constant_of_the_name_of_a_weight_is_another_tensor(build, assert_same):
    tensor = ((200, 200), FLOATS)
    value = helper.make_tensor("w", onnx.TensorProto.FLOAT, [200, 200], [2.0] * 200 * 200)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Mul", ["x", "c"], ["twice"]),
        helper.make_node("Add", ["twice", "w"], ["y"]),
    ]
    model = build(nodes, {"x": tensor}, {"y": tensor}, {"w": np.ones((200, 200), FLOATS)})
    assert_same(model, from_onnx(model))


def test_external_data_is_read(external, weighted, assert_same):
    assert_same(weighted, from_onnx(external), tolerance=0)


def test_missing_external_data(external):
    (external.parent / "weights.bin").unlink()
    assert "'weights.bin'" in refusal(external) and "next to the model" in refusal(external)


def test_truncated_external_data(external):
    data = external.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:100])
    assert "model.onnx" in refusal(external) and "again" in refusal(external)


@pytest.mark.parametrize("location", ["../weights.bin", "sub/../../weights.bin", "..\\weights.bin", "C:\\w", ""])
def test_external_data_outside_of_the_folder(external, location):
    (external.parent / "weights.bin").rename(external.parent.parent / "weights.bin")
    (external.parent / "sub").mkdir()
    relocate(external, location)
    assert "outside the model's own folder" in refusal(external)


def test_external_data_at_an_absolute_path(external):
    relocate(external, str(external.parent / "weights.bin"))
    assert "outside the model's own folder" in refusal(external)


def test_external_data_behind_a_link_out_of_the_folder(external):
    data = external.parent / "weights.bin"
    elsewhere = external.parent.parent / "secret.bin"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    assert "outside the model's own folder" in refusal(external)


def test_external_data_of_a_model_in_memory(external):
    model = onnx.load_model(external, load_external_data=False)
    assert "give the path" in refusal(model)


def test_a_light_model_is_filled(weighted, tmp_path):
    recipe = light.Recipe.of(onnx.numpy_helper.to_array(weighted.graph.initializer[0]), "w")
    path = tmp_path / "light.onnx"
    onnx.save_model(light.strip(weighted, {"w": recipe}), path)
    filled = onnx.numpy_helper.to_array(load_onnx(path).graph.initializer[0])
    np.testing.assert_array_equal(filled, recipe.draw((64, 64)))


@pytest.mark.parametrize("stated", ["nothing", "a type", "a rank"])
def test_outputs_whose_shape_the_file_does_not_say(build, stated, assert_same):
    """ONNX Runtime takes them."""
    nodes = [helper.make_node("Flatten", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = build(nodes, {"x": ((2, "n", 2), "float32")}, {"y": ((None, None), "float32")})
    kind = model.graph.output[0].type
    if stated == "nothing":
        model.graph.output[0].ClearField("type")
    elif stated == "a type":
        kind.tensor_type.ClearField("shape")
    assert_same(model, from_onnx(model, {"x": (2, 3, 2)}))
