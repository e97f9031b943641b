# SPDX-License-Identifier: Apache-2.0
"""Large weights stay out of protobuf: loaded once, shared, mapped where they are in a file."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from smartmem_tvm import light
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import (
    fold,
    from_onnx,
    from_onnx_as_tvm,
    load_onnx,
    load_weights,
    onnxruntime_session,
    read_model,
    run_onnxruntime,
)

SHAPE = (200, 300)
RECIPE = light.Recipe(mean=0.0, std=0.1, min=-1.0, max=1.0, seed=3)
VALUES = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")


@pytest.fixture
def model(build):
    """Return relu(x w) wt, where the graph computes wt from the same weight."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Transpose", ["w"], ["wt"], name="turn"),
        helper.make_node("MatMul", ["r", "wt"], ["y"], name="second"),
    ]
    return build(nodes, {"x": ((4, 200), "float32")}, {"y": ((4, 200), "float32")}, {"w": VALUES})


@pytest.fixture
def light_model(model):
    return light.strip(model, {"w": RECIPE})


@pytest.fixture
def external(model, tmp_path):
    """Return the path of the model with its weight in the file `w.bin` beside it, and nothing before it."""
    path = tmp_path / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save_model(copy, path, save_as_external_data=True, location="w.bin", size_threshold=1024)
    return path


@pytest.fixture
def no_large_protobuf(monkeypatch):
    """Lower the limits that 2 GiB of weights would meet."""
    monkeypatch.setattr(light, "MAX_BYTES", 2**17)
    monkeypatch.setattr(fold, "FOLDABLE", 2**16)


def constants(mod):
    """Return the tensors of a module's constants that are as large as the weight."""
    found = []

    def visit(expr):
        if isinstance(expr, tvm.ir.GenericConst) and np.prod(expr.value.shape) == VALUES.size:
            found.append(expr.value)

    tvm.relax.analysis.post_order_visit(mod["main"], visit)
    return found


def address(tensor):
    return np.from_dlpack(tensor).ctypes.data


def test_the_graph_holds_no_large_weight(model, light_model, external):
    for source in (model, light_model, external):
        read = read_model(source)
        assert list(read.weights) == ["w"] and read.weights.nbytes("w") == VALUES.nbytes
        assert read.proto.ByteSize() < 2000
        assert read.inputs == {"x": ((4, 200), "float32")}


def test_every_kind_of_source_gives_the_values(model, light_model, external):
    for source in (model, external):
        np.testing.assert_array_equal(read_model(source).weights.array("w"), VALUES)
    np.testing.assert_array_equal(read_model(light_model).weights.array("w"), RECIPE.draw(SHAPE))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_precisions_are_drawn_alike(build, dtype):
    tensor = (SHAPE, dtype)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = build([add], {"x": tensor}, {"y": tensor}, {"w": VALUES.astype(dtype)})
    read = read_model(light.strip(model, {"w": RECIPE}))
    np.testing.assert_array_equal(read.weights.array("w"), RECIPE.draw(SHAPE).astype(dtype))


def test_readers_of_one_model_share_one_memory(model):
    read = read_model(model)
    ours, theirs = from_onnx(read), from_onnx_as_tvm(read)
    everywhere = {address(tensor) for mod in (ours, theirs) for tensor in constants(mod)}
    assert address(read.weights["w"]) in everywhere
    assert read.weights["w"].same_as(read.weights["w"])


def test_an_aligned_weight_in_a_file_is_mapped_and_another_is_copied(external):
    read = read_model(external)
    assert onnx.load_model(external, load_external_data=False).graph.initializer[0].external_data[1].value == "0"
    data = external.parent / "w.bin"
    array = np.memmap(data, "float32", "c", 0, SHAPE)
    assert address(load_weights.as_tensor(array)) == array.ctypes.data
    shifted = np.memmap(data, "float32", "c", 4, (100, 300))
    assert address(load_weights.as_tensor(shifted)) != shifted.ctypes.data
    np.testing.assert_array_equal(
        load_weights.as_tensor(shifted).numpy(), VALUES.reshape(-1)[1:30001].reshape(100, 300)
    )
    np.testing.assert_array_equal(read.weights.array("w"), VALUES)


def test_external_data_with_an_offset(external):
    data = external.parent / "w.bin"
    data.write_bytes(bytes(100) + data.read_bytes())
    proto = onnx.load_model(external, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "offset":
            entry.value = "100"
    external.write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(read_model(external).weights.array("w"), VALUES)


@pytest.mark.parametrize(("key", "value"), [("offset", "4"), ("offset", "-4"), ("offset", "x"), ("length", "8")])
def test_external_data_that_ends_too_early(external, key, value):
    proto = onnx.load_model(external, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=r"'w.bin' does not hold the 240000 bytes of tensor 'w'"):
        read_model(external)


def test_models_beyond_protobuf_are_imported_and_compared(light_model, run_tvm, no_large_protobuf):
    """All that works for 4 GB, with the limits lowered to where a small model meets them."""
    read = read_model(light_model)
    inputs = {"x": np.random.default_rng(1).standard_normal((4, 200)).astype("float32")}
    weight = RECIPE.draw(SHAPE)
    expected = np.maximum(inputs["x"] @ weight, 0) @ weight.T
    (reference,) = run_onnxruntime(read, inputs)
    np.testing.assert_allclose(reference, expected, rtol=1e-4, atol=1e-5)
    for mod in (from_onnx(read), from_onnx_as_tvm(read)):
        (got,) = run_tvm(mod, inputs)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_complete_protobuf_beyond_its_limit_is_refused(light_model, no_large_protobuf):
    with pytest.raises(UserError, match="one ONNX model holds less than 2 GiB"):
        load_onnx(light_model)
    with pytest.raises(UserError, match="2 GiB"):
        light.fill(light_model)


def test_weights_beyond_the_memory_of_this_machine_are_refused(light_model):
    light_model.graph.initializer[0].dims[:] = [2**40, 2**20]
    with pytest.raises(UserError, match=r"has weights of 4611686018\.4 GB, and this machine has"):
        read_model(light_model)


def test_the_baseline_is_what_tvm_makes_of_the_complete_model(model):
    from tvm.relax.frontend.onnx import from_onnx as tvm_from_onnx

    tvm.ir.assert_structural_equal(from_onnx_as_tvm(model), tvm_from_onnx(model))


@pytest.mark.parametrize("lean", [False, True])
def test_onnx_runtime_needs_no_file_and_keeps_its_memory(light_model, lean):
    session = onnxruntime_session(read_model(light_model), threads=1, lean=lean)  # nothing else holds the weights
    x = np.ones((4, 200), "float32")
    weight = RECIPE.draw(SHAPE)
    expected = np.maximum(x @ weight, 0) @ weight.T
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_an_output_comes_back(build, assert_same):
    tensor = (SHAPE, "float32")
    model = build([helper.make_node("Relu", ["x"], ["y"])], {"x": tensor}, {"y": tensor, "w": tensor}, {"w": VALUES})
    assert_same(model, from_onnx(model), tolerance=0)
