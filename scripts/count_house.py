#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many concepts the schedules are made of: what is known in several places, read off the sources alone.

python scripts/count_house.py                         # the package of this working tree, as a table
python scripts/count_house.py FOLDER --list           # another revision's folder `smartmem_tvm`, with names
python scripts/count_house.py --json                  # for machines

Nothing is imported from the package, so that any revision can be counted. docs/house.md says what each line counts.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from count_code import PACKAGE, size

_RULE = "Rule"
_UNITS = re.compile(
    r"\b(cycles?|bytes?|KiB|MiB|lanes?|lines?|rows?|columns?|elements?|numbers?|threads?|groups?|warps?|tasks?|steps?|terms?|"
    r"vectors?|places?|times|channels?|results?|registers?|instructions?|operations?|turns?|texels?|loads?|floats?|nodes?|"
    r"products?|multiplications?|processors?|axis|candidates?|of the)\b",
    re.IGNORECASE,
)
_MEASURED = re.compile(r"\b((?i:measured|fitted|timed|data sheets?)|benchmarks/|docs/|20\d\d-\d\d-\d\d|on an? [A-Z])")
# Where a number comes from, the first that applies: what its comment says of it in the end is what counts.
_ORIGINS = {
    "assumed": re.compile(r"\bassumed\b", re.IGNORECASE),
    "chosen, with the reason": re.compile(r"\bchosen: ", re.IGNORECASE),
    "defined by a language, a format or TVM": re.compile(r"\b(by|in its) definition\b", re.IGNORECASE),
    "measured or fitted": _MEASURED,
}
_LOOKING = re.compile(r"[Ss]chedules nothing")
# Classes that each write the loops of a product: file within `schedule`, and class. One that is gone counts no more; a
# new one is added here.
_PRODUCTS = (
    ("cpu/gemm/gemm.py", "Gemm"),
    ("gpu/attention/matrix_block.py", "AttentionThread"),
    ("gpu/attention/product.py", "BlockProduct"),
    ("gpu/gemm/skeleton.py", "Gemm"),  # until 2026-11-28, GpuGemm since
    ("gpu/gemm/skeleton.py", "GpuGemm"),
    ("gpu/matmul/matmul.py", "_Emitter"),
    ("gpu/matrix/matrix.py", "_Emitter"),
    ("gpu/window/product.py", "ProductNest"),
)


@dataclass(frozen=True)
class File:
    """A source file, as text and as a tree; `path` is relative to the package."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """What the file says."""
        return ast.parse(self.text)

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """Its classes."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def comments(self) -> dict[int, str]:
        """Line -> the comment on it."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {each.start[0]: each.string for each in tokens if each.type == tokenize.COMMENT}


class House:
    """The sources of one revision.

    Parameters
    ----------
    package : Path
        The folder ``smartmem_tvm``.
    """

    def __init__(self, package: Path):
        self.package = package
        paths = sorted(package.rglob("*.py"))
        self.files = [File(each.relative_to(package), each.read_text(encoding="utf-8")) for each in paths]
        self.schedule = [each for each in self.files if each.path.parts[0] == "schedule"]

    # -- the order of rules ------------------------------------------------------------------------------------------

    @cached_property
    def rules(self) -> set[str]:
        """Names of the classes that are rules, of whatever depth."""
        bases = {node.name: _names_of(node.bases) for file in self.schedule for node in file.classes}
        found = {_RULE}
        while more := {name for name, over in bases.items() if over & found} - found:
            found |= more
        return found - {_RULE}

    def orders(self) -> list[str]:
        """Files that state an order of rules, ask one rule after the other, or inherit from one to see what it sees."""
        return [str(file.path) for file in self.files if self._knows_the_order(file)]

    def _knows_the_order(self, file: File) -> bool:
        nodes = [*ast.walk(file.tree)]
        listed = any(isinstance(node, ast.List | ast.Tuple) and self._made(node.elts) > 1 for node in nodes)
        return listed or any(map(_asks_in_turn, nodes)) or any(map(_only_looks, file.classes))

    def _made(self, elements: list[ast.expr]) -> int:
        """Rules that are made in a list."""
        calls = [each for each in elements if isinstance(each, ast.Call)]
        return sum(isinstance(each.func, ast.Name) and each.func.id in self.rules for each in calls)

    # -- emitters and models -----------------------------------------------------------------------------------------

    def emitters(self) -> list[str]:
        """Classes that write a loop nest: their method ``kernel``, ``body`` or ``multiply`` makes a statement."""
        return [f"{file.path}:{node.name}" for file in self.schedule for node in file.classes if _emits(node)]

    def product_emitters(self) -> list[str]:
        """Classes that write the loops of a product, of those in `_PRODUCTS`."""
        there = {(str(file.path), node.name) for file in self.schedule for node in file.classes}
        return [f"schedule/{file}:{name}" for file, name in _PRODUCTS if (f"schedule/{file}", name) in there]

    def models(self, side: str) -> list[str]:
        """Files of one side that predict cycles: with a function whose name says so."""
        found = [
            file for file in self.schedule if file.path.parts[1] == side and any(map(_predicts, ast.walk(file.tree)))
        ]
        return [str(file.path) for file in found]

    # -- constants ---------------------------------------------------------------------------------------------------

    def constants(self) -> list[tuple[str, str]]:
        """Numbers at module level in `schedule`, and the comment on each, empty if there is none."""
        return [(f"{file.path}:{name}", comment) for file in self.schedule for name, comment in _constants(file)]

    def bare_constants(self) -> list[str]:
        """Those without a comment that gives a unit and where the number comes from."""
        return [name for name, said in self.constants() if not (_UNITS.search(said) and _origin(said))]

    def origins(self) -> dict[str, int]:
        """Where the other ones come from: origin -> how many."""
        bare = {*self.bare_constants()}
        counts = Counter(_origin(said) for name, said in self.constants() if name not in bare)
        return {f"of these {origin}": counts[origin] for origin in _ORIGINS}

    # -- names -------------------------------------------------------------------------------------------------------

    def file_names(self) -> list[str]:
        """Names that several files of the package have."""
        counts = Counter(file.path.name for file in self.files if not file.path.name.startswith("__"))
        return [f"{name} x {count}" for name, count in counts.most_common() if count > 1]

    def class_names(self) -> list[str]:
        """Names that several classes of `schedule` have."""
        counts = Counter(node.name for file in self.schedule for node in file.classes)
        return [f"{name} x {count}" for name, count in counts.most_common() if count > 1]

    def numbers(self) -> dict[str, int]:
        """All that is counted: what it is -> how many."""
        whole, part = size(self.package), size(self.package / "schedule")
        uncommented = [name for name, said in self.constants() if not said]
        return {
            "places that know the order of rules": len(self.orders()),
            "rules": len(self.rules),
            "emitters of loop nests": len(self.emitters()),
            "emitters of products": len(self.product_emitters()),
            "files with a model of time, CPU": len(self.models("cpu")),
            "files with a model of time, GPU": len(self.models("gpu")),
            "constants at module level in schedule/": len(self.constants()),
            "of these without a comment": len(uncommented),
            "of these without unit and origin": len(self.bare_constants()),
            **self.origins(),
            "file names used more than once": len(self.file_names()),
            "class names used more than once in schedule/": len(self.class_names()),
            "code lines": whole.code_lines,
            "files": whole.files,
            "functions": whole.functions,
            "functions with a single caller": whole.single_caller,
            "code lines of schedule/": part.code_lines,
            "files of schedule/": part.files,
            "functions of schedule/": part.functions,
            "functions of schedule/ with a single caller there": part.single_caller,
        }

    def listed(self) -> dict[str, list[str]]:
        """What is behind the numbers that can be listed."""
        return {
            "places that know the order of rules": self.orders(),
            "emitters of products": self.product_emitters(),
            "files with a model of time": [*self.models("cpu"), *self.models("gpu")],
            "constants without unit and origin": self.bare_constants(),
            "file names used more than once": self.file_names(),
            "class names used more than once in schedule/": self.class_names(),
        }


def _names_of(expressions: list[ast.expr]) -> set[str]:
    return {each.id for each in expressions if isinstance(each, ast.Name)}


def _asks_in_turn(node: ast.AST) -> bool:
    """Whether a loop, or a generator, calls ``apply`` of what it runs over."""
    if isinstance(node, ast.For):
        targets = _names_of([node.target])
    elif isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp):
        targets = {name for each in node.generators for name in _names_of([each.target])}
    else:
        return False
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    asked = [each for each in calls if isinstance(each, ast.Attribute) and each.attr == "apply"]
    if any(isinstance(each.value, ast.Name) and each.value.id in targets for each in asked):
        return True
    handed = [each for each in ast.walk(node) if isinstance(each, ast.Call) and "rule" in targets]
    names = [_names_of(each.args) for each in handed if isinstance(each.func, ast.Name)]
    return any("rule" in each and {"func", "target"} & each and len(each) > 2 for each in names)


def _only_looks(node: ast.ClassDef) -> bool:
    """Whether a class is a rule, by what it inherits, that says of itself that it schedules nothing."""
    functions = [node, *(each for each in node.body if isinstance(each, ast.FunctionDef))]
    return bool(node.bases) and any(_LOOKING.search(ast.get_docstring(each) or "") for each in functions)


def _emits(node: ast.ClassDef) -> bool:
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    wanted = [each for each in methods if each.name in ("kernel", "body", "multiply")]
    return any(each.returns is not None and "tirx.Stmt" in ast.unparse(each.returns) for each in wanted)


def _predicts(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.returns is None or "float" not in ast.unparse(node.returns):
        return False
    return "cycles" in node.name or node.name in ("working", "time")


def _constants(file: File) -> Iterator[tuple[str, str]]:
    body = file.tree.body
    for number, node in enumerate(body):
        if not isinstance(node, ast.Assign) or not _is_numeric(node.value):
            continue
        for target in (name for each in node.targets for name in ast.walk(each) if isinstance(name, ast.Name)):
            if target.id.isupper():
                yield target.id, _said_of(file, node, body[number + 1 : number + 2])


def _origin(said: str) -> str | None:
    """Where a comment says that a number comes from; None if it does not."""
    return next((origin for origin, words in _ORIGINS.items() if words.search(said)), None)


def _is_numeric(value: ast.expr) -> bool:
    """Whether an expression is a number, or a tuple of numbers, written out."""
    if isinstance(value, ast.Tuple | ast.List):
        return bool(value.elts) and all(map(_is_numeric, value.elts))
    if isinstance(value, ast.BinOp):
        return _is_numeric(value.left) and _is_numeric(value.right)
    if isinstance(value, ast.UnaryOp):
        return _is_numeric(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _said_of(file: File, node: ast.Assign, following: list[ast.stmt]) -> str:
    """The comments beside and above a constant, and a string below it."""
    beside = [file.comments.get(line, "") for line in range(node.lineno, node.end_lineno + 1)]
    above, line = [], node.lineno - 1
    while line in file.comments and file.text.splitlines()[line - 1].lstrip().startswith("#"):
        above.append(file.comments[line])
        line -= 1
    strings = [each for each in following if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    below = [str(each.value.value) for each in strings]
    return " ".join([*reversed(above), *beside, *below]).strip()


def main() -> None:
    """Print what is counted of a package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PACKAGE, help="the folder smartmem_tvm of a revision")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="name what is counted")
    args = parser.parse_args()
    house = House(args.folder)
    if args.json:
        print(json.dumps({"numbers": house.numbers(), "listed": house.listed()}, indent=2))
        return
    for what, count in house.numbers().items():
        print(f"{count:>7,}  {what}")
    for what, names in house.listed().items() if args.list else ():
        print(f"\n{what}:", *names, sep="\n  ")


if __name__ == "__main__":
    main()
