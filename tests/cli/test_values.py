# SPDX-License-Identifier: Apache-2.0
"""``--value``: inputs that have one value for good, through the commands."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm import UserError
from smartmem_tvm.cli.model import parse_values

VALUE = ("--value", "sr=16000")


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """A file with an If by the rate, whose branches take x of 6 and of 4 columns."""

    def branch(name, weights):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2])
        return helper.make_graph([helper.make_node("MatMul", ["x", weights], [name])], name, [], [out])

    random = np.random.default_rng(0)
    constants = {"w16": random.standard_normal((6, 2)), "w8": random.standard_normal((4, 2))}
    stored = [numpy_helper.from_array(array.astype("float32"), name) for name, array in constants.items()]
    graph = helper.make_graph(
        [
            helper.make_node("Equal", ["sr", "wide"], ["is_wide"]),
            helper.make_node("If", ["is_wide"], ["t"], then_branch=branch("a", "w16"), else_branch=branch("b", "w8")),
            helper.make_node("Relu", ["t"], ["y"]),
        ],
        "detector",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t"]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [*stored, numpy_helper.from_array(np.array(16000), "wide")],
    )
    path = tmp_path_factory.mktemp("models") / "detector.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["sr=16000"], {"sr": 16000}),
        (["sr=16000", "scale=0.5"], {"sr": 16000, "scale": 0.5}),
        (["sizes=1,2,3"], {"sizes": [1, 2, 3]}),
        (["flag=true", "other=False"], {"flag": True, "other": False}),
        (["a=b=1e3"], {"a=b": 1000.0}),
        (["n=-1"], {"n": -1}),
    ],
)
def test_texts_of_values(texts, values):
    assert parse_values(texts) == values


@pytest.mark.parametrize("texts", [["sr"], ["sr="], ["=1"], ["sr=16k"], ["sr=1,"], ["sr=1", "sr=2"]])
def test_texts_that_are_none(texts):
    with pytest.raises(UserError, match="--value"):
        parse_values(texts)


def test_verify(smartmem, detector):
    outcome = smartmem("verify", detector, "--shape", "x:3,6", *VALUE, "--json")
    assert outcome.code == 0 and outcome.data["ok"]
    assert smartmem("verify", detector, "--shape", "x:3,4", "--value", "sr=8000").code == 0


def test_without_it_the_error_says_what_to_type(smartmem, detector):
    outcome = smartmem("stats", detector, "--shape", "x:3,6")
    assert outcome.code == 2 and outcome.err.rstrip().endswith("fix its value with --value sr=NUMBER.")


def test_the_input_is_no_input_of_the_folder_which_says_its_value(smartmem, detector, tmp_path):
    folder = tmp_path / "out"
    assert smartmem("compile", detector, "-o", folder, "--shape", "x:3,6", *VALUE).code == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [each["name"] for each in manifest["inputs"]] == ["x"] and manifest["values"] == {"sr": 16000}
    assert "sr = 16000" in smartmem("inspect", folder).out
    given = {"x": np.ones((3, 6), "float32"), "sr": np.array(16000)}
    np.savez(tmp_path / "same.npz", **given)
    np.savez(tmp_path / "other.npz", **{**given, "sr": np.array(8000)})
    assert smartmem("run", folder, "--input", tmp_path / "same.npz").code == 0
    for model in ([folder], [detector, "--shape", "x:3,6", *VALUE]):
        outcome = smartmem("run", *model, "--input", tmp_path / "other.npz")
        assert outcome.code == 2 and "'sr' holds 8000, but the model is compiled for 16000" in outcome.err
    assert "--value does nothing here" in smartmem("run", folder, *VALUE).err


def test_bench_gives_it_to_all_systems(smartmem, detector):
    outcome = smartmem("bench", detector, "--shape", "x:3,6", *VALUE, "--budget", "0.1", "--json")
    (row,) = outcome.data["rows"]
    assert outcome.code == 0 and row["systems"]["smartmem"]["relative_error"] < 1e-5
    assert not any("error" in each for each in row["systems"].values())


@pytest.mark.parametrize("command", ["explain", "accesses", "plan", "stats"])
def test_other_commands(smartmem, detector, command):
    assert smartmem(command, detector, "--shape", "x:3,6", *VALUE).code == 0


def test_a_value_of_nothing(smartmem, detector):
    outcome = smartmem("verify", detector, "--shape", "x:3,6", "--value", "rate=1")
    assert outcome.code == 2 and "'rate', not an input of" in outcome.err and "'x', 'sr'" in outcome.err
