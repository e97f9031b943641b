# SPDX-License-Identifier: Apache-2.0
"""``smartmem export-graph``: one node per kernel, which ONNX's checker takes and a viewer can show."""

import json

import onnx
import pytest
from onnx import helper


def attributes(node) -> dict:
    found = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {name: [v.decode() for v in value] if isinstance(value, list) and value and isinstance(value[0], bytes)
            else value.decode() if isinstance(value, bytes) else value for name, value in found.items()}  # fmt: skip


def exported(smartmem, *arguments) -> onnx.ModelProto:
    path = arguments[-1]
    outcome = smartmem("export-graph", *arguments[:-1], "-o", path, "--json")
    assert outcome.code == 0, outcome.err
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    # Nothing is inferred that the file does not say, and nothing contradicts it.
    assert onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True) == model
    assert outcome.data["kernels"] == len(model.graph.node) and outcome.data["bytes"] == path.stat().st_size
    return model


def test_a_folder_as_it_was_compiled(smartmem, compiled_folder, tmp_path):
    model = exported(smartmem, compiled_folder, tmp_path / "k.onnx")
    explained = json.loads((compiled_folder / "explain.json").read_text())
    assert [node.op_type for node in model.graph.node] == [each["kernel"] for each in explained["kernels"]]
    for node, kernel in zip(model.graph.node, explained["kernels"], strict=True):
        said = attributes(node)
        assert node.domain == "smartmem.kernels"
        assert said["operators"] == kernel["members"] and said.get("eliminated", []) == kernel["views"]
        assert said["rule"] == explained["rules"][kernel["kernel"]]["name"]
        assert said["memory"] == ["buffer"] and said["layout"] == ["as in the model"]
    assert sum(attributes(node).get("weight_bytes", 0) for node in model.graph.node) >= 8 * 8 * 4
    assert [each.name for each in model.graph.input] == ["x"] and not model.graph.initializer


def test_every_tensor_has_a_shape_and_a_type(smartmem, compiled_folder, tmp_path):
    graph = exported(smartmem, compiled_folder, tmp_path / "k.onnx").graph
    values = {each.name: each.type.tensor_type for each in (*graph.input, *graph.output, *graph.value_info)}
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    assert set(values) == used
    shapes = {name: [dim.dim_value for dim in each.shape.dim] for name, each in values.items()}
    assert shapes["x"] == [2, 4, 8] and all(each.elem_type == onnx.TensorProto.FLOAT for each in values.values())
    assert shapes[graph.output[0].name] == [2, 4, 8]


def test_a_model_gives_the_same_graph_as_its_folder(smartmem, model_path, compiled_folder, tmp_path):
    first = exported(smartmem, compiled_folder, tmp_path / "a.onnx").graph
    second = exported(smartmem, model_path, tmp_path / "b.onnx").graph
    assert list(first.node) == list(second.node)


def test_textures_and_times(smartmem, model_path, tmp_path):
    assert smartmem("compile", model_path, "-o", tmp_path / "phone", "--target", "adreno-740").code == 0
    explained = json.loads((tmp_path / "phone" / "explain.json").read_text())
    times = [{"kernel": each["kernel"], "launches": 2, "seconds": 4e-6} for each in explained["kernels"]]
    (tmp_path / "times.json").write_text(json.dumps({"model": str(model_path), "kernels": times}))
    model = exported(smartmem, tmp_path / "phone", "--times", tmp_path / "times.json", tmp_path / "k.onnx")
    placed = {e["tensor"]: e["memory"] for e in explained["decisions"] if e["pass"] == "PlaceTextures"}
    found = {node.output[0]: attributes(node) for node in model.graph.node}
    assert {name: each["memory"][0] for name, each in found.items()} == {name: placed[name] for name in found}
    textures = [each for each in found.values() if each["memory"] == ["texture"]]
    assert textures and all(each["layout"][0].startswith("texel from dimension") for each in textures)
    assert [each["microseconds"] for each in found.values()] == pytest.approx([2.0] * len(found))


def test_times_of_another_model(smartmem, compiled_folder, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"model": "other.onnx", "kernels": [{"kernel": "k", "seconds": 1.0}]}))
    outcome = smartmem("export-graph", compiled_folder, "-o", tmp_path / "k.onnx", "--times", tmp_path / "t.json")
    assert outcome.code == 2 and "no times of attention's kernels" in outcome.err


def test_a_folder_of_an_older_version(smartmem, compiled_folder, tmp_path):
    for name in ("manifest.json", "explain.json"):
        content = json.loads((compiled_folder / name).read_text())
        content.pop("graphs", None)
        (tmp_path / name).write_text(json.dumps(content))
    outcome = smartmem("export-graph", tmp_path, "-o", tmp_path / "k.onnx")
    assert outcome.code == 2 and "compile the model again" in outcome.err
    assert smartmem("report", tmp_path, "-o", tmp_path / "r.html").code == 0


def test_the_model_is_not_written_over(smartmem, model_path):
    before = model_path.read_bytes()
    outcome = smartmem("export-graph", model_path, "-o", model_path)
    assert outcome.code == 2 and "is what is read, and would be lost" in outcome.err
    assert model_path.read_bytes() == before
