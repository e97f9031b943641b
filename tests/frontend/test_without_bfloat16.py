# SPDX-License-Identifier: Apache-2.0
"""Models of bfloat16, from the file to the folder, against ONNX Runtime in float32."""

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm as sm
from against_onnxruntime import model_of
from smartmem_tvm.cli import main
from smartmem_tvm.frontend import read_model, run_onnxruntime
from smartmem_tvm.frontend.without_bfloat16 import has_bfloat16, without_bfloat16

RANDOM = np.random.default_rng(0)
NODE = helper.make_node


def numbers(*shape: int, largest: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * largest).astype(ml_dtypes.bfloat16)


def heads(*names: str) -> list:
    return [NODE("Transpose", [name], [f"{name}_t"], perm=[0, 1, 3, 2]) for name in names]


GRAPHS = {
    "a block": (
        [
            NODE("LayerNormalization", ["x", "scale", "shift"], ["normal"], axis=-1),
            NODE("MatMul", ["normal", "up"], ["wide"]),
            NODE("Gelu", ["wide"], ["bent"]),
            NODE("MatMul", ["bent", "down"], ["narrow"]),
            NODE("Add", ["x", "narrow"], ["y"]),
        ],
        {"x": (1, 8, 96)},
        {"scale": (96,), "shift": (96,), "up": (96, 384), "down": (384, 96)},
        (1, 8, 96),
    ),
    "attention": (
        [
            *heads("k"),
            NODE("MatMul", ["q", "k_t"], ["products"]),
            NODE("Softmax", ["products"], ["shares"]),
            NODE("MatMul", ["shares", "v"], ["y"]),
        ],
        dict.fromkeys("qkv", (1, 2, 16, 8)),
        {},
        (1, 2, 16, 8),
    ),
    "a convolution": (
        [NODE("Conv", ["x", "w", "b"], ["h"], pads=[1] * 4), NODE("Sigmoid", ["h"], ["g"]), NODE("Mul", "hg", "y")],
        {"x": (1, 4, 9, 9)},
        {"w": (8, 4, 3, 3), "b": (8,)},
        (1, 8, 9, 9),
    ),
}


def model(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    nodes, inputs, weights, shape = GRAPHS[name]
    arrays = {each: numbers(*sizes) for each, sizes in inputs.items()}
    stored = {each: numbers(*sizes, largest=sizes[0] ** -0.5) for each, sizes in weights.items()}
    return model_of(nodes, arrays, {"y": ("bfloat16", shape)}, stored, opset=20), arrays


@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_float32_but_for_rounding(name):
    proto, arrays = model(name)
    (want,) = run_onnxruntime(read_model(proto), arrays)
    (got,) = sm.compile(sm.from_onnx(proto)).run(*arrays.values())
    assert got.dtype == want.dtype == ml_dtypes.bfloat16
    wide = want.astype("float64")
    np.testing.assert_allclose(got.astype("float64"), wide, rtol=0, atol=2e-2 * np.abs(wide).max())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A model with its weights in a file of its own, and an input."""
    proto, arrays = model("a block")
    folder = tmp_path_factory.mktemp("block")
    onnx.save(proto, folder / "block.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    np.savez(folder / "x.npz", **arrays)
    return folder / "block.onnx"


def test_a_folder_keeps_weights_apart_and_reads_numpys_files(file, tmp_path, capsys):
    assert main(["verify", str(file), "--input", str(file.with_name("x.npz"))]) == 0
    assert main(["compile", str(file), "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "weights.bin").stat().st_size >= 2 * 2 * 96 * 384
    capsys.readouterr()
    assert main(["run", str(tmp_path / "out"), "--input", str(file.with_name("x.npz")), "--repeat", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["dtype"] == "bfloat16"


def test_everything_that_names_the_type_is_changed():
    cast = NODE("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16)
    constant = NODE("Constant", [], ["c"], value=numpy_helper.from_array(numbers(3), "c"))
    proto = model_of([cast, constant, NODE("Add", ["h", "c"], ["y"])], {"x": np.zeros(3, "float32")}, {"y": "bfloat16"})
    assert has_bfloat16(proto)
    assert not has_bfloat16(without_bfloat16(read_model(_with_shape(proto))).proto)


def _with_shape(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.graph.output[0].type.tensor_type.shape.dim.add(dim_value=3)
    return proto


def test_stats_says_that_tvm_refuses(file, capsys):
    assert main(["stats", str(file)]) == 2
    assert "TVM's default pipeline cannot compile" in capsys.readouterr().err
