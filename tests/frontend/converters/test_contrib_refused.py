# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, model_of
from smartmem_tvm.frontend.converters import CONVERTERS
from smartmem_tvm.frontend.converters.contrib_refused import REFUSED

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "benchmarks"))
from pages.contrib_operators import schemas  # noqa: E402

NAMES = sorted(f"{RUNTIME}.{name}" for name in schemas())


def test_each_operator_of_onnx_runtime_is_served_or_refused():
    assert [name for name in NAMES if (name in CONVERTERS) == (name in REFUSED)] == []
    assert [name for name in REFUSED if name not in NAMES] == []


def test_each_one_that_is_served_has_a_test():
    text = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)
    served = [name.split(".")[-1] for name in NAMES if name in CONVERTERS]
    assert [name for name in served if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    ("domain", "op", "reason"),
    [
        (RUNTIME, "BeamSearch", "runs a decoder in a loop.*export the decoder alone"),
        (RUNTIME, "Tokenizer", "about texts; do that before the model"),
        (RUNTIME, "Unique", "how much it gives depends on numbers"),
        ("com.microsoft.nchwc", "ReorderInput", "save it with the level ORT_ENABLE_EXTENDED"),
        ("ai.onnx.ml", "Scaler", "belongs to a model of tables"),
    ],
)
def test_the_message_names_the_operator_and_says_what_to_do(domain, op, reason):
    node = helper.make_node(op, ["x"], ["y"], "odd", domain=domain)
    model = model_of([node], {"x": np.zeros((2, 2), "float32")}, {"y": ("float32", (2, 2))})
    model.opset_import.append(onnx.helper.make_opsetid(domain, 1)) if domain != RUNTIME else None
    with pytest.raises(sm.UserError, match=rf"{domain}.{op} \(odd\): .*{reason}"):
        sm.from_onnx(model)


def test_an_operator_that_is_no_one_is_still_refused():
    node = helper.make_node("Nobodys", ["x"], ["y"], "odd", domain=RUNTIME)
    model = model_of([node], {"x": np.zeros((2, 2), "float32")}, {"y": ("float32", (2, 2))})
    with pytest.raises(sm.UserError, match=r"Nobodys \(odd\); export the model without them"):
        sm.from_onnx(model)
