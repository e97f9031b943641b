# SPDX-License-Identifier: Apache-2.0
"""Test by evaluation whether an integer expression of OpenCL C changes within a loop; other names get numbers."""

from __future__ import annotations

import random
import re
from types import CodeType

_SAMPLES = 64
_BELOW = (2, 8, 64, 1024)  # bounds, in turns, for unknown variables such as the index of a thread
_FUNCTIONS = {"min": min, "max": max, "select": lambda no, yes, condition: yes if condition else no}
_IDENTITY = re.compile(r"(?:convert|as)_\w+")
_CAST = re.compile(r"\(\s*(?:u?(?:int|long|short|char)|bool|float|half)\s*\)")


def changes(expression: str, variable: str, extent: int | None) -> bool:
    """Whether an expression takes different values in one run of a loop.

    True if it was seen to change; also for anything but a plain integer expression, which cannot be evaluated.

    Parameters
    ----------
    variable : str
        The loop's counter, from 0.
    extent : int or None
        Number of iterations, if known.
    """
    code = _compiled(expression)
    if code is None:
        return True
    try:
        return any(_differs(code, variable, extent or _BELOW[-1], seed) for seed in range(_SAMPLES))
    except (ArithmeticError, TypeError, ValueError):
        return True


def _compiled(expression: str) -> CodeType | None:
    text = _CAST.sub("", expression)
    if "?" in text or "{" in text:
        return None
    for c, python in (("&&", " and "), ("||", " or "), ("/", "//")):
        text = text.replace(c, python)
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\((?:u?int|long)4\)", "", text)  # without a vector's constructor, a tuple is left
    try:
        return compile(text.strip(), "<expression>", "eval")
    except SyntaxError:
        return None


def _differs(code: CodeType, variable: str, extent: int, seed: int) -> bool:
    rng = random.Random(seed)
    rest = _Numbers(rng, _BELOW[seed % len(_BELOW)])
    tries = {0, extent - 1, *(rng.randrange(extent) for _ in range(2)), 1 % extent, 2 % extent}
    # The expression has names, numbers and operators of C only, and no functions but those given here.
    seen = {eval(code, {"__builtins__": {}}, rest.with_value(variable, number)) for number in tries}
    return len(seen) > 1


class _Number(int):
    """A number that may be called like ``get_local_id`` or indexed like memory, which gives another number."""

    def __call__(self, *where: int) -> int:
        return hash((int(self), *map(int, where))) % max(_BELOW)

    __getitem__ = __call__


class _Numbers(dict):
    """A mapping with a value for every name, the same one each time."""

    def __init__(self, rng: random.Random, below: int):
        super().__init__(_FUNCTIONS)
        self.rng, self.below = rng, below

    def __missing__(self, name: str):
        self[name] = int if _IDENTITY.fullmatch(name) else _Number(self.rng.randrange(self.below))
        return self[name]

    def with_value(self, variable: str, number: int) -> _Numbers:
        self[variable] = number
        return self
