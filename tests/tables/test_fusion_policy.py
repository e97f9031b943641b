# SPDX-License-Identifier: Apache-2.0
"""The policy of fusion: its rows name what there is, and a kind that is forbidden is not done, with a reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from helpers import module, op
from smartmem_tvm import optimize
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pass_registry import PASSES
from smartmem_tvm.tables import fusion_policy
from smartmem_tvm.tables.fusion_policy import FORBIDDEN, FUSIONS
from smartmem_tvm.target import parse_target

WEIGHT = relax.const(np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8))
PAGE = Path(__file__).parents[2] / "docs" / "fusion.md"


def softmax_by_hand(x):
    e = op.exp(op.subtract(x, op.max(x, -1, keepdims=True)))
    return op.divide(e, op.sum(e, -1, keepdims=True))


def recurrence(x):
    for _ in range(12):
        x = op.tanh(op.matmul(x, WEIGHT))
    return x


# Kind -> a network that has it, and its target.
NETWORKS = {
    "epilogue": (lambda x: op.nn.relu(op.matmul(x, WEIGHT)), "cpu"),
    "prologue": (lambda x: op.nn.relu(op.add(x, x)), "cpu"),
    "copies": (lambda x: op.matmul(op.nn.relu(x), WEIGHT), "cpu"),
    "rows": (softmax_by_hand, "cpu"),
    "attention": (lambda x: op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(x, [1, 0]))), x), "cpu"),
    "chains": (recurrence, "cuda"),
}


def fused(kind: str) -> tuple[bool, list[str]]:
    """Whether the pass of a kind fused something in its network, and the reasons of what it kept."""
    network, target = NETWORKS[kind]
    graph = optimize(module(network, (16, 8)), parse_target(target))
    name = {each.name: each for each in FUSIONS}[kind].made_by
    passed = [each for each in read_log(graph) if each["pass"] == "".join(part.title() for part in name.split("-"))]
    return any(each["action"] in ("fused", "merged") for each in passed), [each.get("reason") for each in passed]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_kind_that_is_forbidden_is_not_done(kind, monkeypatch):
    done, reasons = fused(kind)
    assert done and FORBIDDEN not in reasons
    only = {each.name: replace(each, allowed=each.name != kind) for each in FUSIONS}
    # The other kinds of the same pass would do it instead: a value that may not go to one reader is copied to it.
    same = {"prologue": ("copies",), "copies": ("prologue",)}.get(kind, ())
    only |= {name: replace(only[name], allowed=False) for name in same}
    monkeypatch.setattr(fusion_policy, "_BY_NAME", only)
    done, reasons = fused(kind)
    assert not done and FORBIDDEN in reasons


def test_every_kind_has_a_network_here():
    assert set(NETWORKS) == {each.name for each in FUSIONS}


@pytest.mark.parametrize("row", FUSIONS, ids=lambda row: row.name)
def test_a_row_names_passes_and_limits_that_exist(row):
    assert row.made_by in PASSES
    assert row.limits and all(isinstance(getattr(fusion_policy, each), int | float) for each in row.limits)


@pytest.mark.parametrize("row", FUSIONS, ids=lambda row: row.name)
def test_the_page_has_every_row(row):
    limits = ", ".join(f"`{each}`" for each in row.limits)
    cells = (f"`{row.name}`", f"`{row.made_by}`", row.kernels, limits, row.decided_by, row.undone_by or "-")
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")
