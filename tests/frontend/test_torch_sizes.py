# SPDX-License-Identifier: Apache-2.0
"""Sizes that a program of torch leaves open."""

import onnx
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_torch, input_spec
from torch_stand_in import Expression, Program, Size, bounds, install

RANGES = {Expression("s7", 1): bounds(2, 64), Expression("s9", 1): bounds(4, 8)}


@pytest.fixture
def program(monkeypatch, tmp_path):
    """x: [s7, s9], y: [s7, 2*s9]."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Concat", ["x", "x"], ["two"], axis=1), helper.make_node("Add", ["two", "y"], ["z"])]
    inputs = [value("x", 1, ["s7", "s9"]), value("y", 1, ["s7", "2*s9"])]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", inputs, [value("z", 1, ["s7", "2*s9"])])), tmp_path / "g.onnx"
    )
    install(monkeypatch, tmp_path / "g.onnx")
    return Program({"x": (Size("s7"), Size("s9")), "y": (Size("s7"), Size("s9", 2))}, RANGES)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_they_get_numbers(program, batch):
    """torch writes 2 as the least where it was told nothing, and takes 1."""
    mod = from_torch(program, {"x": (batch, 4), "y": (batch, 8)})
    assert input_spec(mod) == {"x": ((batch, 4), "float32"), "y": ((batch, 8), "float32")}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"leaves input sizes open.*dimension 0 \('s7'\) of 'x'.*--shape x:1,1 --shape y:1,2"),
        (
            {"x": (65, 4), "y": (65, 8)},
            r"dimension 0 of 'x' is 65, and the program was exported for 2 to 64; give such",
        ),
        ({"x": (5, 3), "y": (5, 6)}, r"dimension 1 of 'x' is 3, and the program was exported for 4 to 8"),
        ({"x": (5, 4), "y": (5, 9)}, r"dimension 1 of 'y' is 9, and must be 2\*s9: give 8"),
        ({"x": (5, 4), "y": (6, 8)}, r"contradicts The torch program"),
    ],
)
def test_others_are_refused(program, shapes, message):
    with pytest.raises(UserError, match=message):
        from_torch(program, shapes)
