# SPDX-License-Identifier: Apache-2.0
"""Imports point one way: tables <- planner <- analysis <- transform, schedule <- pipeline <- tune <- deploy <- cli."""

import ast
from pathlib import Path

import pytest

import smartmem_tvm

ROOT = Path(smartmem_tvm.__file__).parent
# Each layer with those below it: a module may import from its own package and from lower layers only.
# fmt: off
LAYERS = [
    "tables", "planner", "target ir", "analysis", "transform schedule", "texture_trial", "report pipeline",
    "executor", "tune", "deploy",
    "runtime frontend", "remote", "doctor bench", "page", "cli",
]
# fmt: on
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages.split()}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, as dotted names below it (``ir.graph``)."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = list(path.parent.parts)[: len(path.parent.parts) - node.level + 1] if node.level else []
            name = [*base, *((node.module or "").split("."))] if node.level else node.module.split(".")
            if node.level or name[0] == "smartmem_tvm":
                stem = ".".join(part for part in (name if node.level else name[1:]) if part)
                found |= {f"{stem}.{alias.name}".strip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("smartmem_tvm.") for a in node.names if a.name.startswith("smartmem_tvm.")}
    return found


def package(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [p for p in FILES if package(p) in LEVEL], ids=str)
def test_imports_point_one_way(path):
    mine = package(path)
    for name in imports(path):
        other = name.split(".")[0]
        if other in LEVEL and other != mine:
            assert LEVEL[other] < LEVEL[mine], f"{path} imports {name}"


def passes_of(path: Path) -> set[str]:
    """The module or package of a pass that a file of `transform` belongs to, or that it imports."""
    return {".".join(name.split(".")[:2]) for name in imports(path) if name.startswith("transform.")}


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "transform" and p.name != "__init__.py"], ids=str)
def test_a_pass_never_imports_another_pass(path):
    own = f"transform.{path.parts[1].removesuffix('.py')}"  # a small package is one pass, or a few of one kind
    assert passes_of(path) <= {own}


WITHOUT_TVM = [p for p in FILES if p.parts[0] in ("tables", "planner") or p.parts[:2] == ("tune", "genetic")]


@pytest.mark.parametrize("path", WITHOUT_TVM, ids=str)
def test_tables_planners_and_the_genetic_search_know_nothing_of_tvm(path):
    assert "tvm" not in (ROOT / path).read_text(encoding="utf-8").replace("smartmem_tvm", "")


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[:2] == ("tune", "genetic")], ids=str)
def test_the_genetic_search_imports_nothing_else_of_this_package(path):
    assert all(name.startswith("tune.genetic.") for name in imports(path))


def test_the_reader_of_imports_works():
    assert "ir.graph.rewrite_graphs" in imports(Path("transform/eliminate_layout.py"))
    assert "tables.quadrant.Quadrant" in imports(Path("analysis/classify.py"))
    assert "transform.eliminate_layout.EliminateLayout" in imports(Path("pipeline.py"))
    assert "tables.quadrant.Quadrant" in imports(Path("tables/action.py"))
