# SPDX-License-Identifier: Apache-2.0
"""The algebraic laws of a kernel, determined from its loop program (DNNFusion 4.1: extended computational graph).

`tables.properties` has the laws of named operators. Only the form of a kernel's value selects the row: ``x + y`` over
two loads is an addition under any name, and a sum of products is a matmul. A kernel of any other form has no laws here.
"""

from __future__ import annotations

import re

import tvm_ffi
from tvm import ir, tirx

from ..ir.index_map import function_name, is_if_then_else, variables
from ..ir.kernel import REDUCE, Kernel, Stage
from ..ir.movement import movement
from ..tables.properties import Property, properties

# Forms of the value: x, y, z are loads (equal letters are equal loads), t is the result of the previous stage, a the
# accumulator, c a constant. A semicolon separates stages.
# fmt: off
_FORMS = {
    "x + y": "add",                    "x + c": "add",
    "x - y": "subtract",               "x - c": "subtract",               "c - x": "subtract",
    "x * y": "multiply",               "x * c": "multiply",               "c * x": "multiply",
    "x / y": "divide",                 "x / c": "divide",                 "c / x": "divide",
    "x * -1": "negative",              "0 - x": "negative",               "x * x": "square",
    "fabs(x)": "abs",                  "select(0 <= x, x, 0 - x)": "abs",
    "sqrt(x)": "sqrt",                 "rsqrt(x)": "rsqrt",               "1 / sqrt(x)": "rsqrt",
    "pow(x, y)": "power",              "pow(x, c)": "power",
    "exp(x)": "exp",                   "log(x)": "log",
    "max(x, y)": "maximum",            "max(x, c)": "maximum",
    "min(x, y)": "minimum",            "min(x, c)": "minimum",
    "max(x, 0)": "nn.relu",            "max(min(x, c), c)": "clip",       "min(max(x, c), c)": "clip",
    "x << y": "left_shift",            "x << c": "left_shift",
    "x >> y": "right_shift",           "x >> c": "right_shift",
    "x & y": "bitwise_and",            "x & c": "bitwise_and",
    "x | y": "bitwise_or",             "x | c": "bitwise_or",
    "x ^ y": "bitwise_xor",            "x ^ c": "bitwise_xor",  # of booleans: logical_xor, with the same laws
    "x and y": "logical_and",          "x or y": "logical_or",
    "x == y": "equal",                 "x == c": "equal",
    "x != y": "not_equal",             "x != c": "not_equal",
    "a + x": "sum",                    "a * x": "prod",                   "a + x; t / c": "mean",
    "max(a, x)": "max",                "min(a, x)": "min",                "a + x; t * c": "mean",
    "a + x * y": "matmul",
}
_INFIX = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.Div: "/", tirx.And: "and", tirx.Or: "or",
    tirx.EQ: "==", tirx.NE: "!=", tirx.LT: "<", tirx.LE: "<=",
    tirx.LShift: "<<", tirx.RShift: ">>", tirx.BitwiseAnd: "&", tirx.BitwiseOr: "|", tirx.BitwiseXor: "^",
}
# fmt: on
_PREFIX = {tirx.Max: "max", tirx.Min: "min"}
_SPECIAL = (0, 1, -1)  # constants that may determine the operator
_ANY_SPECIAL = re.compile(r"-1|\b[01]\b")


def laws(kernel: Kernel) -> frozenset[Property]:
    """Return the properties of a kernel's operator in `tables.properties`; empty if it is none of them."""
    name = operator(kernel)
    return properties(name) if name is not None else frozenset()


def operator(kernel: Kernel) -> str | None:
    """Return the name of the Relax operator with laws that a kernel computes; None if it is none of them.

    Data movements inside the kernel do not count, such as the padding of a convolution, if they fill in the value that
    the reduction starts from.
    """
    if movement(kernel) is not None:
        return None
    texts, before = [], None
    inside = [s for s in kernel.stages if movement(Kernel((), s.outputs, (s,))) is not None]
    stages = [s for s in kernel.stages if s not in inside]
    if not all(_is_neutral(s, kernel.readers(s.outputs[0])) for s in inside):
        return None
    for stage in stages:
        if not isinstance(stage.body, tirx.BufferStore):
            return None
        texts.append(_Form(stage, before).text(stage.body.value))
        before = stage.outputs[0]
    form = "; ".join(texts)
    name = _FORMS.get(form) or _FORMS.get(_ANY_SPECIAL.sub("c", form))
    if name == "matmul" and any(_slides(stage) for stage in stages):
        return f"nn.conv{min(max(len(stages[0].spatial) - 2, 1), 3)}d"
    return name


def _is_neutral(stage: Stage, readers: list[Stage]) -> bool:
    """Whether every constant that a data movement fills in is the initial value of its readers' accumulators."""
    fills = {float(fill.value) for fill in _fills(stage.body.value)}
    starts = [reader.init for reader in readers]
    return not fills or all(isinstance(s, tirx.BufferStore) and fills == {_number(s.value)} for s in starts)


def _fills(value) -> list:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return [value]
    if is_if_then_else(value):
        return _fills(value.args[1]) + _fills(value.args[2])
    return _fills(value.true_value) + _fills(value.false_value) if isinstance(value, tirx.Select) else []


def _number(value) -> float | None:
    return float(value.value) if isinstance(value, tirx.IntImm | tirx.FloatImm) else None


def _slides(stage: Stage) -> bool:
    """Whether one index contains a reduction iterator and a spatial one: a window over the operand."""
    kinds = {it.var: it.iter_type == REDUCE for it in stage.iters}
    indices = (index for load in stage.loads for index in load.indices)
    return any(len({kinds[var] for var in variables(index) if var in kinds}) == 2 for index in indices)


def _keeps_value(cast: tirx.Cast) -> bool:
    """Whether a conversion is between floats, up to rounding, or to a wider integer."""
    old, new = (str(expr.ty.dtype) for expr in (cast.value, cast))
    if "float" in old and "float" in new:
        return True
    return old.startswith("int") and new.startswith("int") and int(new[3:]) >= int(old[3:])


class _Form:
    """Writes the value of one stage in the letters of `_FORMS`."""

    def __init__(self, stage: Stage, before):
        self._outputs, self._before, self._loads = stage.outputs, before, []

    def text(self, expr, nested: bool = False) -> str:
        """Return the form of an expression; unknown constructs become ``?``."""
        kind = type(expr)
        if kind in _INFIX:
            inner = f"{self.text(expr.a, True)} {_INFIX[kind]} {self.text(expr.b, True)}"
            return f"({inner})" if nested and kind not in (tirx.Mul, tirx.Div) else inner
        if kind in _PREFIX:
            return f"{_PREFIX[kind]}({self.text(expr.a)}, {self.text(expr.b)})"
        if kind is tirx.Cast and _keeps_value(expr):
            return self.text(expr.value, nested)
        if isinstance(expr, ir.TensorLoad):
            return self._load(expr)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            value = float(expr.value)
            return f"{int(value)}" if value in _SPECIAL else "c"
        if kind is tirx.Select:
            return f"select({self.text(expr.condition)}, {self.text(expr.true_value)}, {self.text(expr.false_value)})"
        if isinstance(expr, ir.Call):
            return f"{function_name(expr) or '?'}({', '.join(self.text(arg) for arg in expr.args)})"
        return "?"

    def _load(self, load) -> str:
        if any(load.source.same_as(out) for out in self._outputs):
            return "a"
        if self._before is not None and load.source.same_as(self._before):
            return "t"
        for letter, known in zip("xyz", self._loads):
            if tvm_ffi.structural_equal(known, load):
                return letter
        self._loads.append(load)
        return "xyz"[len(self._loads) - 1] if len(self._loads) <= 3 else "?"
