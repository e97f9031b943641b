# SPDX-License-Identifier: Apache-2.0
"""Threads that import different modules at once never deadlock.

Python holds a lock for each module during its import. The import of ``p.q`` takes the lock of ``p.q`` before that of
``p``; the import of a ``p`` that imports ``p.q`` takes them in the reverse order. So a package either imports none of
its own modules, or is imported as a whole before its parts, wherever modules outside of it import those.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import smartmem_tvm

ROOT = Path(smartmem_tvm.__file__).parent
FILES = {(("smartmem_tvm", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")}
MODULES = {name[:-1] if name[-1] == "__init__" else name: path for name, path in FILES.items()}
# Packages of others that import their own parts.
OTHERS = {("tvm",), ("tvm", "relax", "frontend", "onnx"), ("onnx",), ("onnxruntime",), ("torch",), ("scipy",)}


def at_import(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run while a module is imported, in order."""
    left = list(tree.body)
    while left:
        each = left.pop(0)
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield each
        elif isinstance(each, ast.If) and "TYPE_CHECKING" not in ast.unparse(each.test):
            left = [*each.body, *each.orelse, *left]
        elif isinstance(each, ast.Try | ast.With):
            left = [*each.body, *left]


def locks(name: tuple[str, ...], is_package: bool, source: str) -> list[tuple[str, ...]]:
    """Return the modules whose locks a module takes while it is imported, their packages left out."""
    found = []
    for each in at_import(ast.parse(source)):
        if isinstance(each, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in each.names]
            continue
        base = name[: len(name) - each.level + is_package] if each.level else ()
        base = (*base, *(each.module.split(".") if each.module else ()))
        found += [base, *((*base, alias.name) for alias in each.names if (*base, alias.name) in MODULES)]
    return found


LOCKS = {name: locks(name, path.name == "__init__.py", path.read_text()) for name, path in MODULES.items()}


def below(name: tuple[str, ...], package: tuple[str, ...]) -> bool:
    return len(name) > len(package) and name[: len(package)] == package


WHOLE = OTHERS | {name for name, taken in LOCKS.items() if len(name) > 1 and any(below(each, name) for each in taken)}


def parts_first(name: tuple[str, ...], taken: list[tuple[str, ...]]) -> list[str]:
    """Return the parts of packages that a module imports before the package itself."""
    found = []
    for package in WHOLE:
        first = next((each for each in taken if each[: len(package)] == package), package)
        if first != package and not below(name, package) and name != package:
            found.append(".".join(first))
    return found


def test_a_package_that_imports_its_parts_comes_whole_before_them():
    assert len(MODULES) > 700
    for name in MODULES:
        assert parts_first(name, LOCKS[name]) == [], name


@pytest.mark.parametrize(
    "package", ["frontend", "transform", "tvm_mends", "schedule", "deploy", "tune", "executor", "runtime"]
)
def test_what_is_imported_in_parts_imports_none_of_them(package):
    assert ("smartmem_tvm", package) in MODULES and ("smartmem_tvm", package) not in WHOLE


def test_modules_import_each_other_in_no_circle():
    """A package that is imported as a whole is the only holder of its modules' locks."""
    waits = {name: {each for each in taken if each in MODULES} for name, taken in LOCKS.items()}
    waits = {name: {each for each in needs if name[: len(each)] != each} for name, needs in waits.items()}
    done: set = set()
    while ready := {name for name in waits.keys() - done if waits[name] <= done}:
        done |= ready
    assert waits.keys() == done


def test_the_reader_works():
    source = "import tvm.target\nfrom tvm import relax\ndef f():\n    import onnx.helper\n"
    assert parts_first(("a",), locks(("a",), False, source)) == ["tvm.target"]
    assert parts_first(("a",), locks(("a",), False, "import tvm\n" + source)) == []
    assert parts_first(("a",), locks(("a",), False, "from tvm.relax.frontend.onnx.onnx_frontend import x")) != []
    relative = locks(("smartmem_tvm", "deploy", "x"), False, "from ..frontend.converters import node")
    assert parts_first(("smartmem_tvm", "deploy", "x"), relative) == []
    part = locks(("smartmem_tvm", "deploy", "x"), False, "from ..frontend.converters.node import Node")
    assert parts_first(("smartmem_tvm", "deploy", "x"), part) == ["smartmem_tvm.frontend.converters.node"]
