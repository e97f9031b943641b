#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How big the package is: code lines, files, functions, and functions with a single caller.

A code line holds part of a statement: no blank line, no comment, no docstring counts. A function has a single caller if
its name is read once in all files, by whatever reads it; those of few lines are listed by themselves.

python scripts/count_code.py                       # the package
python scripts/count_code.py benchmarks --json     # another folder, for machines
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "smartmem_tvm"
SMALL_FILE, SHORT_FUNCTION = 40, 8  # code lines; lines
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Size:
    """How big a folder is."""

    code_lines: int
    files: int
    small_files: int
    functions: int
    single_caller: int
    short_with_single_caller: int


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines with part of a statement."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def size(folder: Path) -> Size:
    """Count a folder of Python files."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    counts = [code_lines(text, tree) for text, tree in zip(texts, trees)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    read = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    read.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    single = [node for node in functions if read[node.name] == 1]
    return Size(
        code_lines=sum(counts),
        files=len(texts),
        small_files=sum(count < SMALL_FILE for count in counts),
        functions=len(functions),
        single_caller=len(single),
        short_with_single_caller=sum(node.end_lineno - node.lineno + 1 <= SHORT_FUNCTION for node in single),
    )


def main() -> None:
    """Print the size of a folder."""
    parser = argparse.ArgumentParser(description="How big the package is.")
    parser.add_argument("folder", type=Path, nargs="?", default=PACKAGE, help="of Python files (default: the package)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = size(args.folder)
    if args.json:
        print(json.dumps(asdict(found)))
        return
    print(
        f"{found.code_lines} code lines in {found.files} files, {found.small_files} of these under {SMALL_FILE} lines; "
        f"{found.functions} functions, {found.single_caller} with a single caller, {found.short_with_single_caller} of "
        f"these of at most {SHORT_FUNCTION} lines."
    )


if __name__ == "__main__":
    main()
