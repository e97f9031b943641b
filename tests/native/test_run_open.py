# SPDX-License-Identifier: Apache-2.0
"""The program without Python on models with an open dimension: drawn sizes beside ONNX Runtime, and what is refused."""

import ctypes
import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import _smartmem_opencl
from against_onnxruntime import reference
from open_models import drawn_chain, encoder, layers, sentence
from runner import built, call
from smartmem_tvm.cli import main
from smartmem_tvm.deploy import export
from smartmem_tvm.remote.runner import export_runner


def lengths() -> onnx.ModelProto:
    """Two inputs with positions along other axes and one without, and results with positions, twice, and without."""
    shapes = {"x": ["n", 6], "h": [3, "n"], "row": [6]}
    given = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    sizes = {"new": ["n", 6], "pairs": ["n", "n"], "all": [3, 6]}
    results = [helper.make_tensor_value_info(name, 1, shape) for name, shape in sizes.items()]
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=0),
        helper.make_node("Mul", ["p", "row"], ["scaled"]),
        helper.make_node("MatMul", ["h", "scaled"], ["all"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["pairs"]),
        helper.make_node("Add", ["scaled", "row"], ["new"]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "m", given, results), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def windows() -> onnx.ModelProto:
    """A convolution that goes on by two: a result has half of the positions."""
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3, 3)).astype("float32"), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 1])]
    given = [helper.make_tensor_value_info("x", 1, [1, 3, "n"])]
    graph = helper.make_graph(nodes, "m", given, [helper.make_tensor_value_info("y", 1, [1, 4, "m"])], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def free_batch() -> onnx.ModelProto:
    """`sentence` of which the batch is open, too."""
    model = sentence()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "b"
    return model


CASES = {
    "batch": (layers(), ["x:1..9,16"], [{"x": (n, 16)} for n in (1, 2, 3, 5, 7, 9)]),
    "a batch from three on": (layers(), ["x:3..9,16"], [{"x": (n, 16)} for n in (3, 4, 8)]),
    "a batch of heads": (encoder(), ["x:1..7,5"], [{"x": (n, 5)} for n in (1, 3, 7)]),
    "length": (sentence(), ["x:1,1..37"], [{"x": (1, n)} for n in (1, 2, 13, 31, 37)]),
    "batch and length": (free_batch(), ["x:1..3,1..19"], [{"x": pair} for pair in ((1, 1), (3, 7), (2, 19))]),
    "several inputs": (
        lengths(),
        ["x:2..23,6", "h:3,2..23", "row:6"],
        [{"x": (n, 6), "h": (3, n), "row": (6,)} for n in (2, 11, 23)],
    ),
    "a stride": (windows(), ["x:1,3,1..29"], [{"x": (1, 3, n)} for n in (1, 2, 7, 28, 29)]),
}


def compiled(model: onnx.ModelProto, shapes: list[str], place, *more: str):
    onnx.save(model, place / "m.onnx")
    words = [word for text in shapes for word in ("--shape", text)]
    assert main(["compile", str(place / "m.onnx"), *words, "-o", str(place / "out"), *more]) == 0
    return place / "out"


def drawn(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(seed), {}
    kinds = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    for name, shape in shapes.items():
        ids = kinds[name] == TensorProto.INT64
        found[name] = random.integers(0, 11, shape) if ids else random.standard_normal(shape).astype("float32")
    return found


def by_program(folder, arrays, place, *more: str) -> dict[str, np.ndarray]:
    files = []
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array)
        files += ["--input", f"{name}={place / name}.npy"]
    outcome = call(folder, *files, "--output", place / "results", "--repeat", "1", "--json", "--threads", "1", *more)
    assert outcome.code == 0, outcome.err
    return {each["name"]: np.load(each["file"]) for each in outcome.data["outputs"]}


def check(model, folder, sizes, place, *more: str) -> None:
    for number, shapes in enumerate(sizes):
        arrays = drawn(model, shapes, number)
        found = by_program(folder, arrays, place, *more)
        wanted = reference(model, arrays)
        assert len(found) == len(wanted)
        for (name, got), want in zip(found.items(), wanted, strict=True):
            assert got.shape == want.shape, name
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {shapes}")


@pytest.mark.parametrize("case", CASES)
def test_any_size_in_the_range(case, tmp_path):
    model, shapes, sizes = CASES[case]
    check(model, compiled(model, shapes, tmp_path), sizes, tmp_path)


@pytest.mark.device
@pytest.mark.parametrize("seed", range(6))
def test_drawn_networks_with_an_open_length(seed, tmp_path):
    random = np.random.default_rng(seed)
    model = drawn_chain(random)
    width = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    folder = compiled(model, [f"x:1,1..41,{width}"], tmp_path)
    sizes = [{"x": (1, int(n), width)} for n in {1, 41, *random.integers(2, 41, 3)}]
    check(model, folder, sizes, tmp_path)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    return compiled(layers(), ["x:2..9,16"], tmp_path_factory.mktemp("open"))


def test_the_same_bits_as_in_python(batches, tmp_path):
    for items in range(2, 10):
        x = np.random.default_rng(items).standard_normal((items, 16)).astype("float32")
        (got,) = by_program(batches, {"x": x}, tmp_path).values()
        np.testing.assert_array_equal(got, export.load(batches).run(x)[0])


def test_a_shape_for_random_numbers(batches):
    outcome = call(batches, "--shape", "x:7,16", "--repeat", "1", "--json")
    assert outcome.code == 0 and outcome.data["outputs"][0]["shape"] == [7, 16]
    assert call(batches, "--repeat", "1", "--json").data["outputs"][0]["shape"][1] == 16


def test_other_sizes_are_a_sentence(batches, tmp_path):
    for shape in ("1,16", "10,16", "4,15", "4,16,1", "16"):
        said = call(batches, "--shape", f"x:{shape}").sentence
        assert said.startswith("this model takes 'x' (2..9)x16, and 'x' "), said
        assert "came: give these shapes, or compile it for others." in said
    assert "the model has no input 'y'" in call(batches, "--shape", "y:4,16").sentence
    folder = compiled(lengths(), CASES["several inputs"][1], tmp_path)
    said = call(folder, "--shape", "x:4,6", "--shape", "h:3,5").sentence
    assert said == "input 'h' has 5 positions and input 'x' 4: give both as many." or "give both as many" in said
    assert call(folder, "--shape", "x:4,6", "--repeat", "1").code == 0  # the other input follows


def test_the_c_interface(batches):
    library = ctypes.CDLL(str(built() / "libsmartmem_run.so"))
    library.smartmem_run_error.restype = ctypes.c_char_p

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_char_p),
            ("dtype", ctypes.c_char_p),
            ("rank", ctypes.c_int32),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("bytes", ctypes.c_uint64),
            ("ids_below", ctypes.c_int64),
        ]

    def called(name, *arguments):
        assert getattr(library, f"smartmem_run_{name}")(*arguments) == 0, library.smartmem_run_error()

    def choose(items):
        shape = (ctypes.c_int64 * 2)(items, 16)
        return library.smartmem_run_choose_size(model, ctypes.byref(Tensor(b"x", b"", 2, shape, 0, 0)), 1)

    def result(x):
        called("set_input", model, b"x", x.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(x.nbytes))
        called("run", model)
        described, got = Tensor(), np.empty((len(x), 16), "float32")
        called("describe_output", model, 0, ctypes.byref(described))
        assert described.shape[: described.rank] == [len(x), 16] and described.bytes == got.nbytes
        out = got.ctypes.data_as(ctypes.c_void_p)
        called("get_output", model, described.name, out, ctypes.c_uint64(got.nbytes))
        return got

    model = ctypes.c_void_p()
    called("open", str(batches).encode(), None, ctypes.byref(model))
    assert library.smartmem_run_is_open(model) == 1
    for items in (7, 2, 9, 7):
        assert choose(items) == 0
        assert library.smartmem_run_run(model) == -1 and b"'x' was not given" in library.smartmem_run_error()
        x = np.random.default_rng(items).standard_normal((items, 16)).astype("float32")
        np.testing.assert_array_equal(result(x), export.load(batches).run(x)[0])
    assert choose(10) == -1 and b"this model takes 'x' (2..9)x16" in library.smartmem_run_error()
    np.testing.assert_array_equal(result(x), export.load(batches).run(x)[0])  # the size in use stays
    assert library.smartmem_run_set_input(model, b"x", x.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(4)) == -1
    for number in range(library.smartmem_run_size_count(model)):
        called("use_size", model, number)
    library.smartmem_run_close(model)


_RANGE = {"least": 2, "most": 9, "inputs": [{"axis": 0, "each": 1}], "outputs": [{"axis": 0, "each": 1}]}
DAMAGES = {
    "another axis": {"inputs": [{"axis": 5, "each": 1}]},
    "another number of inputs": {"inputs": []},
    "other elements": {"inputs": [{"axis": 0, "each": 3}]},
    "no elements": {"inputs": [{"axis": 0, "each": 0}]},
    "no tiles": {"tiles": []},
    "tiles that are not there": {"tiles": [{"function": "main_77", "items": 1, "cost": 1}]},
    "a range from nothing on": {"least": 0},
    "a range that ends before it begins": {"most": 1},
    "a count that is too large": {"most": 2**60},
    "a length that no function takes": {"length": True},
    "items around items": {"around": _RANGE},
    "a step of nothing": {"outputs": [{"axis": 0, "each": 1, "step": 0}]},
    "outputs along another axis": {"outputs": [{"axis": 7, "each": 1}]},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_a_sentence(damage, batches, tmp_path):
    place = shutil.copytree(batches, tmp_path / "copied")
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["open"][0] |= DAMAGES[damage]
    (place / "manifest.json").write_text(json.dumps(manifest))
    assert call(place, "--shape", "x:7,16", "--repeat", "1").sentence.endswith("compile the model again.")


@pytest.mark.device
def test_the_exported_folder(batches, tmp_path):
    export_runner(batches, tmp_path / "runner")
    outcome = call(tmp_path / "runner" / "model", "--shape", "x:5,16", "--repeat", "1", "--json")
    assert outcome.code == 0 and outcome.data["outputs"][0]["shape"] == [5, 16]


@pytest.mark.device
@pytest.mark.parametrize("case", ["batch", "length"])
def test_on_opencl(case, tmp_path):
    there = shutil.copytree(built(), tmp_path / "runner", symlinks=True)
    shutil.copy(_smartmem_opencl.library_path(), there)
    model, shapes, sizes = CASES[case]
    folder = compiled(model, shapes, tmp_path, "--target", "opencl")
    for number, each in enumerate(sizes[:3]):
        arrays = drawn(model, each, number)
        np.save(tmp_path / "x.npy", arrays["x"])
        outcome = call(
            *(folder, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path / "results", "--repeat", "2", "--json"),
            program=there / "smartmem_run",
            POCL_DEVICES="pthread",
            HOME=str(tmp_path),
            SMARTMEM_OPENCL_CACHE="0",
        )
        assert outcome.code == 0, outcome.err
        got = np.load(outcome.data["outputs"][0]["file"])
        np.testing.assert_allclose(got, reference(model, arrays)[0], rtol=1e-4, atol=1e-5)
