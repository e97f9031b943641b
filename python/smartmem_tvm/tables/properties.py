# SPDX-License-Identifier: Apache-2.0
"""The algebraic properties of operators, by which DNNFusion (section 4.2) rewrites and partitions the graph."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Law(Enum):
    """The law of a property, for an operator ``f``."""

    ASSOCIATIVE = "associative"  # f(f(a, b), c) = f(a, f(b, c))
    COMMUTATIVE = "commutative"  # f(a, b) = f(b, a)
    DISTRIBUTIVE = "distributive over"  # f(a o b) = f(a) o f(b), or with another o' on the right for exp and log
    EXCHANGES = "commutes with"  # f(g(a)) = g(f(a)), in the paper also called commutative


class Property(NamedTuple):
    """One law of one operator; `other` is the second operator of a law about two."""

    law: Law
    other: str | None = None

    def __str__(self) -> str:
        return self.law.value if self.other is None else f"{self.law.value} {self.other}"


_LETTERS = {"A": Law.ASSOCIATIVE, "C": Law.COMMUTATIVE}

# fmt: off
_ROWS = {
    # operator        A, C  distributive over               commutes with
    "add":           ("AC", "",                             ""),
    "multiply":      ("AC", "add subtract",                 ""),
    "subtract":      ("",   "",                             "negative"),
    "divide":        ("",   "add subtract multiply",        ""),
    "negative":      ("",   "add subtract",                 "multiply divide sum mean"),
    "abs":           ("",   "multiply divide",              ""),
    "square":        ("",   "multiply divide",              "abs sqrt"),
    "sqrt":          ("",   "multiply divide",              "max min"),
    "rsqrt":         ("",   "multiply divide",              ""),
    "power":         ("",   "multiply divide",              ""),
    "exp":           ("",   "add subtract",                 "max min"),
    "log":           ("",   "multiply divide",              "max min"),
    "maximum":       ("AC", "minimum",                      "exp sqrt nn.relu"),
    "minimum":       ("AC", "maximum",                      "exp sqrt nn.relu"),
    "nn.relu":       ("",   "maximum minimum",              "max min"),
    "clip":          ("",   "maximum minimum",              "max min"),
    "left_shift":    ("",   "add subtract",                 "sum"),
    "right_shift":   ("",   "bitwise_and bitwise_or",       ""),
    "bitwise_and":   ("AC", "bitwise_or bitwise_xor",       ""),
    "bitwise_or":    ("AC", "bitwise_and",                  ""),
    "bitwise_xor":   ("AC", "",                             ""),
    "logical_and":   ("AC", "logical_or logical_xor",       ""),
    "logical_or":    ("AC", "logical_and",                  ""),
    "logical_xor":   ("AC", "",                             ""),
    "equal":         ("C",  "",                             ""),
    "not_equal":     ("C",  "",                             ""),
    "sum":           ("",   "add subtract",                 "left_shift multiply divide negative sum mean"),
    "mean":          ("",   "add subtract",                 "multiply divide negative sum mean"),
    "prod":          ("",   "multiply divide",              "abs square sqrt prod"),
    "max":           ("",   "maximum",                      "exp log sqrt nn.relu max"),
    "min":           ("",   "minimum",                      "exp log sqrt nn.relu min"),
    "matmul":        ("A",  "add subtract",                 "multiply divide negative"),
    "nn.conv1d":     ("",   "add subtract",                 "multiply divide negative"),
    "nn.conv2d":     ("",   "add subtract",                 "multiply divide negative"),
    "nn.conv3d":     ("",   "add subtract",                 "multiply divide negative"),
}
# fmt: on

PROPERTIES: dict[str, frozenset[Property]] = {
    name: frozenset(
        [Property(_LETTERS[letter]) for letter in letters]
        + [Property(Law.DISTRIBUTIVE, other) for other in over.split()]
        + [Property(Law.EXCHANGES, other) for other in exchanged.split()]
    )
    for name, (letters, over, exchanged) in _ROWS.items()
    if letters or over or exchanged
}


def properties(op: str) -> frozenset[Property]:
    """Return the algebraic properties of a Relax operator that hold for every input, or under a rule's condition.

    Parameters
    ----------
    op
        Name of the operator, with or without the prefix ``relax.``.

    Returns
    -------
    frozenset of Property
        Empty for operators at which rewriting stops; ``str`` of a property is readable (``"associative"``,
        ``"distributive over add"``).
    """
    return PROPERTIES.get(op.removeprefix("relax."), frozenset())
