# SPDX-License-Identifier: Apache-2.0
"""scripts/count_house.py counts places with the order of rules, cost models, and constants without a measurement."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "count_house.py"
RULE = "class Rule: ...\nclass Matmul(Rule): ...\nclass Slide(Matmul): ...\nclass Params: ...\n"


@pytest.fixture
def counted(tmp_path):
    """Return a function: files by name -> the script's counts of a package with these files."""

    def counted(**files: str) -> dict:
        folder = tmp_path / "smartmem_tvm" / "schedule"
        for name, text in {"core/rule": RULE, **{key.replace("__", "/"): text for key, text in files.items()}}.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, str(SCRIPT), str(folder.parent), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return counted


@pytest.mark.parametrize(
    ("text", "knows"),
    [
        ("rules = [Matmul(), Slide()]", True),
        ("def f(): return (Slide(), Matmul())", True),
        ("rules = [Matmul()]", False),
        ("rules = [Params(), Params()]", False),
        ("for rule in rules:\n    found = rule.apply(func, target)", True),
        ("found = [each.apply(func, target) for each in rules]", True),
        ("found = any(rule.apply(func, target) for rule in rules)", True),
        ("for rule in rules:\n    found = asked(func, packed, target, rule)", True),
        ("found = Matmul().apply(func, target)", False),
        ("for each in rules:\n    found = other.apply(func, target)", False),
        ("class Look(Matmul):\n    def lower(self):\n        'Schedules nothing.'", True),
        ("class Look(Matmul):\n    'Asks what a kernel is, and schedules nothing.'", True),
        ("class Other(Matmul):\n    def lower(self):\n        'Schedules a kernel.'", False),
    ],
)
def test_places_that_know_the_order(counted, text, knows):
    found = counted(it=text)
    assert found["listed"]["places that know the order of rules"] == (["schedule/it.py"] if knows else [])
    assert found["numbers"]["rules"] == 2 + ("(Matmul):" in text)


CONSTANTS = '''
_BARE = 0.5
_UNIT = 0.5  # cycles for an element
_WHOLE = 0.5  # cycles for an element, measured on an EPYC
# Cycles of a line; 2026-11-01, AVX2.
_ABOVE, _TWO = 1.0, -2
_TABLE = (1, 2 * 3)
"""Bytes, of NVIDIA's data sheets."""
_ASSUMED = 8  # cycles of a division: assumed on 2026-11-24. Measured: 3
_CHOSEN = 12  # nodes of an epilogue. Chosen: most have fewer
_NO_REASON = 12  # nodes of an epilogue, chosen
_DEFINED = 64  # bytes of a row, by definition of AMX
_NAMES = ("a", 1)
_FLAG = True
lower = 3
'''


def test_constants_with_and_without_unit_and_origin(counted):
    found = counted(cpu__it=CONSTANTS)
    numbers = found["numbers"]
    assert numbers["constants at module level in schedule/"] == 10
    assert numbers["of these without a comment"] == 1
    assert numbers["of these measured or fitted"] == 4
    assert numbers["of these assumed"] == 1
    assert numbers["of these chosen, with the reason"] == 1
    assert numbers["of these defined by a language, a format or TVM"] == 1
    bare = found["listed"]["constants without unit and origin"]
    assert bare == [f"schedule/cpu/it.py:{name}" for name in ("_BARE", "_UNIT", "_NO_REASON")]


def test_models_emitters_and_names(counted):
    model = "def far_cycles(n) -> float: ...\n"
    emitter = "class _Emitter:\n    def kernel(self) -> tirx.Stmt: ...\n"
    plan = "def cycles_text(n) -> str: ...\n"
    skeleton = "class Gemm:\n    def nest(self) -> tirx.Stmt: ...\n"
    files = {"cpu__tile": model, "gpu__tile": model, "cpu__slide": emitter, "cpu__other": emitter, "cpu__plan": plan}
    found = counted(**files, cpu__gemm__gemm=skeleton)["numbers"]
    assert (found["files with a model of time, CPU"], found["files with a model of time, GPU"]) == (1, 1)
    assert (found["emitters of loop nests"], found["emitters of products"]) == (2, 1)
    assert found["file names used more than once"] == 1
    assert found["class names used more than once in schedule/"] == 1


def test_the_order_of_rules_has_one_owner(monkeypatch):
    """The owner also cuts kernels of several families, by the rules that it is given."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = runpy.run_path(str(SCRIPT))
    assert script["House"](script["PACKAGE"]).orders() == ["schedule/choose.py", "schedule/core/sequence.py"]


def test_the_table_names_what_it_counts(counted, tmp_path):
    counted(choose="rules = [Matmul(), Slide()]")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "smartmem_tvm"), "--list"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "places that know the order of rules" in done.stdout and "schedule/choose.py" in done.stdout
