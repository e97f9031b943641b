# SPDX-License-Identifier: Apache-2.0
"""Read the names of open sizes: placeholders (``?``), names of equal sizes (``n``), expressions (``32*h``)."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Mapping
from functools import cache

_NOTHING = {"none", "null", "unk", "unknown", "dynamic", "undefined"}
_MADE_UP = re.compile(r"unk__\d+")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_BASES = (1, 2, 3, 4, 8, 16, 32, 64)
_LONGEST = 200  # characters of a name that is read as an expression
Sizes = Mapping[str, int]


def says_nothing(name: str) -> bool:
    """Whether a name is a placeholder, so that equal names mean nothing: exporters write ``?`` and the like."""
    return not any(map(str.isalpha, name)) or name.strip().lower() in _NOTHING


def is_made_up(name: str) -> bool:
    """Whether a program generated the name (``unk__1``), so that a user may give two inputs different sizes for it."""
    return _MADE_UP.fullmatch(name) is not None


def derived(names: Iterable[str], known: Sizes) -> dict[str, int]:
    """Return the known sizes and those among `names` that follow from them.

    Parameters
    ----------
    names
        Names of sizes, as ``n``, ``32*h`` or ``past + 1``.
    known
        Name -> size.

    Returns
    -------
    dict
        `known`, and ``32*h`` where ``h`` is known, and ``h`` where ``32*h`` is.
    """
    found, names = dict(known), list(dict.fromkeys(names))
    while True:
        more = {name: size for name in names if name not in found and (size := _value(name, found)) is not None}
        for name in (each for each in names if each in found):
            more.update({each: size for each, size in _solved(name, found) if each not in found})
        if not more:
            return found
        found |= more


def example(names: Iterable[str], known: Sizes) -> dict[str, int]:
    """Return consistent sizes for all names: the names in expressions get the first number that makes all positive."""
    names = list(names)
    free = {each for name in names for each in names_in(name)} - set(known)
    for base in _BASES:
        found = derived(names, {**known, **dict.fromkeys(free, base)})
        if all(found.get(name, 0) >= 1 for name in names):
            break
    return {name: max(1, found.get(name, 1)) for name in names}


@cache
def _parsed(name: str) -> ast.expr | None:
    """Return the expression in a name, None for a plain name."""
    try:
        tree = ast.parse(name.strip(), mode="eval").body if len(name) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if isinstance(tree, ast.BinOp) and _is_arithmetic(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATORS and _is_arithmetic(tree.left) and _is_arithmetic(tree.right)
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


def names_in(name: str) -> set[str]:
    """Return the names in an expression; of a plain name, itself."""
    tree = _parsed(name)
    return {name} if tree is None else {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


def _value(name: str, known: Sizes) -> int | None:
    """Return the value of an expression, None if it is not one or if some of its names are unknown."""
    tree = _parsed(name)
    if tree is None or not names_in(name) <= known.keys():
        return None
    try:
        size = _computed(tree, known)
    except ZeroDivisionError:
        return None
    return size if size > 0 else None


def _computed(tree: ast.expr, known: Sizes) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)](_computed(tree.left, known), _computed(tree.right, known))
    return known[tree.id] if isinstance(tree, ast.Name) else tree.value


def _solved(name: str, known: Sizes) -> Iterable[tuple[str, int]]:
    """Yield the one unknown name of an expression and its value, if the expression is linear in it."""
    tree, unknown = _parsed(name), names_in(name) - known.keys()
    if tree is None or len(unknown) != 1:
        return
    (wanted,) = unknown
    try:
        first, second = (_computed(tree, {**known, wanted: size}) for size in (1, 2))
        if second == first:
            return
        size = 1 + (known[name] - first) // (second - first)
        if size > 0 and _computed(tree, {**known, wanted: size}) == known[name]:
            yield wanted, size
    except ZeroDivisionError:
        return
