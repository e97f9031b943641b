# SPDX-License-Identifier: Apache-2.0
"""Parameters and multiplications of the networks: counted rightly, near the paper's, shown in models/README.md."""

import runpy
from pathlib import Path

import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
FACTS = runpy.run_path(str(ROOT / "scripts" / "model_facts.py"))
PAPER = FACTS["PAPER"]


def test_the_readme_shows_the_facts():
    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    assert text.partition("<!-- facts -->\n")[2].partition("\n<!-- /facts -->")[0] == FACTS["table"]()


@pytest.mark.parametrize("file", PAPER)
def test_facts_are_those_of_the_paper_or_the_table_says_why_not(file):
    ours, paper = FACTS["facts"](ROOT / "models" / f"{file}.onnx"), PAPER[file]
    near = abs(ours.params / paper.params / 1e6 - 1) < 0.05 and abs(ours.macs / paper.macs / 1e9 - 1) < 0.05
    assert near != bool(paper.remark)


def one_node(operator, inputs, output, **attributes):
    node = helper.make_node(operator, list(inputs), ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (inputs | {"y": output}).items()
    ]
    return helper.make_model(helper.make_graph([node], "one", values[:-1], values[-1:]))


# Counted by hand, with no two sizes equal: output elements times the products that each one sums.
@pytest.mark.parametrize(
    ("model", "macs"),
    [
        (one_node("Conv", {"x": [1, 6, 9, 11], "w": [4, 3, 2, 5]}, [1, 4, 8, 7], group=2), 4 * 8 * 7 * 3 * 2 * 5),
        (one_node("ConvTranspose", {"x": [1, 6, 4, 5], "w": [6, 7, 2, 3]}, [1, 7, 5, 7]), 6 * 4 * 5 * 7 * 2 * 3),
        (one_node("MatMul", {"a": [2, 3, 5], "b": [5, 7]}, [2, 3, 7]), 2 * 3 * 5 * 7),
        (one_node("Gemm", {"a": [5, 3], "b": [5, 7]}, [3, 7], transA=1), 3 * 5 * 7),
        (one_node("Gemm", {"a": [3, 5], "b": [7, 5]}, [3, 7], transB=1), 3 * 5 * 7),
        (one_node("Einsum", {"a": [2, 3], "b": [5, 3]}, [5, 2], equation="ij, kj -> ki"), 2 * 3 * 5),
        (one_node("Relu", {"x": [2, 3]}, [2, 3]), 0),
    ],
    ids=lambda value: value.graph.node[0].op_type if hasattr(value, "graph") else "",
)
def test_multiplications_of_one_node(model, macs):
    assert FACTS["count_macs"](model) == macs
