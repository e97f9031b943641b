# SPDX-License-Identifier: Apache-2.0
"""Imports point one way: tables <- planner <- analysis <- transform, schedule <- pipeline <- tune <- deploy <- cli."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import smartmem_tvm

ROOT = Path(smartmem_tvm.__file__).parent
# Layers from the bottom up: a module may import from its own package and from lower layers only.
# fmt: off
LAYERS = [
    "tables", "planner", "target ir", "analysis", "transform schedule", "tvm_mends", "texture_trial",
    "options module_file requirements", "pass_registry output_check", "report pipeline", "executor", "tune", "deploy",
    "runtime frontend", "remote", "doctor torch_backend", "tools", "cli",
]
# fmt: on
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages.split()}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


@cache
def imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, as dotted names below it (``ir.graph``)."""
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


# One test for all files: each case of a test has a price of its own, and so has collecting it in each worker.
def test_imports_point_one_way():
    mine = [path for path in FILES if package(path) in LEVEL]
    assert len(mine) > 600
    for path in mine:
        for name in imports(path):
            other = name.split(".")[0]
            if other in LEVEL and other != package(path):
                assert LEVEL[other] < LEVEL[package(path)], f"{path} imports {name}"


_LONG = {"transform": 3, "tvm_mends": 2}  # names in the path of a pass: transform/fuse/fuse_rows, tvm_mends/keep_nan


# Files with TVM's pipelines that contain passes of this package.
_PIPELINES = ("__init__.py", "lowering.py", "texture_pipeline.py")


def passes_of(path: Path) -> set[str]:
    """Return the modules or small packages of passes that a file imports."""
    found = (name.split(".") for name in imports(path))
    return {".".join(each[: _LONG[each[0]]]) for each in found if each[0] in _LONG}


def test_a_pass_never_imports_another_pass():
    files = [path for path in FILES if path.parts[0] in _LONG and path.name not in _PIPELINES]
    assert len(files) > 60
    for path in files:
        parts = path.with_suffix("").parts[: _LONG[path.parts[0]]]  # a small package is one pass, or a few of one kind
        assert passes_of(path) <= {".".join(parts)}, path


# Folder of schedule rules, or of passes that ask for plans -> folders that it may import.
SCHEDULE = {"core": {"core"}, "cpu": {"core", "cpu"}, "gpu": {"core", "gpu"}}
SCHEDULE["constants"] = {"constants", "choose", "core", "cpu", "gpu"}


def test_rules_for_cpus_and_for_gpus_share_the_core_only():
    """The list of rules, and the pass that asks them for plans, lie above both."""
    files = [path for path in FILES if path.parts[0] == "schedule" and len(path.parts) > 2]
    assert len(files) > 100
    for path in files:
        found = {name.split(".")[1] for name in imports(path) if name.startswith("schedule.")}
        assert found <= SCHEDULE[path.parts[1]], path


# What each tool may import.
TOOLS = {"bench": {"bench", "timm_networks"}, "page": {"page", "bench"}, "isa": {"isa"}, "reduce": {"reduce"}}


def test_tools_do_not_know_each_other():
    """Only the report's page imports another tool, as it shows the measurements of `bench`."""
    files = [path for path in FILES if path.parts[0] == "tools" and len(path.parts) > 2]
    assert len(files) > 20
    for path in files:
        found = {name.split(".")[1] for name in imports(path) if name.startswith("tools.")}
        assert found <= TOOLS[path.parts[1]], path


_COMPILES = """
import sys
import numpy as np
from onnx import helper
import smartmem_tvm as sm

value = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
sm.compile(sm.from_onnx(helper.make_model(graph))).run(np.zeros((2, 3), "float32"))
print(*sorted(name for name in sys.modules if name.startswith(("smartmem_tvm.tools", "smartmem_tvm.cli"))))
"""


def test_compiling_loads_no_tool_and_no_command():
    done = subprocess.run([sys.executable, "-c", _COMPILES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Functions that change a module, a graph or a kernel with other holders, and those that make a pass.
CHANGES = {
    *("absorb", "remove", "rename", "replace_value", "update_func", "update_global_info", "update_imports"),
    *("rewrite_blocks", "rewrite_calls", "rewrite_graphs", "rewrite_stages", "edit_blocks", "append_log", "write"),
    *("module_pass", "function_pass", "prim_func_pass", "dataflowblock_pass", "PyExprMutator"),
}


@cache
def names_in(path: Path) -> set[str]:
    """Return every name that a file imports, calls or takes from an object."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.Attribute):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


def test_analysis_stands_between_the_intermediate_representation_and_the_passes():
    assert LEVEL["ir"] < LEVEL["analysis"] < LEVEL["transform"] == LEVEL["schedule"]


def test_analysis_reads_only():
    changes = {path: names_in(path) & CHANGES for path in FILES if path.parts[0] == "analysis"}
    assert changes and not any(changes.values()), changes


def test_walks_are_made_in_one_place():
    """`ir.walk` keeps callers' errors out of TVM's callbacks; `_tvm` lies below it, and `tvm_mends` rewrites code.

    `ir.image_access` follows the nesting of the code around an access, which a list of nodes does not give.
    """
    walkers = {Path("ir/image_access.py"), Path("_tvm.py"), Path("tvm_mends/printed_expressions.py")}
    assert {path for path in FILES if "structural_walk" in names_in(path)} == walkers
    assert [path for path in FILES if "_tvm.walk" in imports(path)] == [Path("ir/walk.py")]


WITHOUT_TVM = [p for p in FILES if p.parts[0] in ("tables", "planner") or p.parts[:2] == ("tune", "genetic")]


def test_tables_planners_and_the_genetic_search_know_nothing_of_tvm():
    assert WITHOUT_TVM
    for path in WITHOUT_TVM:
        assert "tvm" not in (ROOT / path).read_text(encoding="utf-8").replace("smartmem_tvm", ""), path


def test_the_genetic_search_imports_nothing_else_of_this_package():
    files = [path for path in FILES if path.parts[:2] == ("tune", "genetic")]
    assert files and all(name.startswith("tune.genetic.") for path in files for name in imports(path))


def test_the_reader_of_imports_works():
    assert "ir.graph.rewrite_graphs" in imports(Path("transform/layout/eliminate_layout.py"))
    assert "tables.quadrant.Quadrant" in imports(Path("analysis/classify.py"))
    assert "transform.layout.check_textures.CheckTextures" in imports(Path("texture_trial.py"))
    assert "tables.quadrant.Quadrant" in imports(Path("tables/action.py"))
    assert "schedule.core.rule.NestRule" in imports(Path("schedule/gpu/launch.py"))


def test_the_reader_of_names_works():
    assert {"module_pass", "write"} <= names_in(Path("transform/layout/place_textures/place_textures.py"))
    assert "rename" in names_in(Path("transform/layout/place_textures/movable.py"))


def imported_names(path: Path) -> set[tuple[str, str]]:
    """Return module and name of each import of a file from this package, in functions too."""
    found, package_of = set(), ("smartmem_tvm", *path.parent.parts)
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("smartmem_tvm")):
            base = [*package_of[: len(package_of) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {(module, alias.name) for alias in node.names}
    return found


def names_of(module: str) -> set[str]:
    """Return the names in a module, read from its source if it needs torch, which tests do not have."""
    if module.startswith("smartmem_tvm.torch_backend."):
        return defined(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8"))
    return set(dir(importlib.import_module(module)))


def defined(source: str) -> set[str]:
    """Return the functions and classes of a source."""
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_reader_of_definitions_works():
    assert defined("import a\ndef f(): pass\nclass C:\n    def g(self): pass") == {"f", "C"}


def test_what_is_imported_somewhere_exists():
    """Commands import when they run, so that without this test users would be the first to find a renamed import."""
    missing = []
    for module, name in sorted(set().union(*map(imported_names, FILES))):
        if name not in names_of(module) and importlib.util.find_spec(f"{module}.{name}") is None:
            missing.append(f"{module}.{name}")
    assert missing == []


def bare_constants(source: str) -> list[str]:
    """Return the calls of ``relax.const`` without a dtype."""
    if "relax.const(" not in source:
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    bare = [each for each in calls if len(each.args) < 2 and not any(word.arg == "dtype" for word in each.keywords)]
    return [found for found in map(ast.unparse, bare) if found.startswith("relax.const(")]


def test_constants_say_their_dtype():
    """Without a dtype, ``relax.const`` narrows an array of 64-bit numbers to 32 bits."""
    assert len(FILES) > 700
    for path in FILES:
        assert bare_constants((ROOT / path).read_text(encoding="utf-8")) == [], path


def test_the_reader_of_constants_works():
    source = "relax.const(x); relax.const(x, d); relax.const(x, dtype=d); f(relax.const(x.numpy()))"
    assert bare_constants(source) == ["relax.const(x)", "relax.const(x.numpy())"]
