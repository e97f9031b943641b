# SPDX-License-Identifier: Apache-2.0
"""The work of a kernel under any schedule: arithmetic, function calls, and bytes that must move.

Each value counts once. A sum that a convolution reads nine times counts once, whether it is stored or fused into the
convolution's loop: a schedule that repeats it does more than the necessary work.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tvm import ir, tirx

from ..ir.index_map import function_name, is_if_then_else, variables
from ..ir.kernel import Kernel, Opaque, Stage, shape_of, substitute
from ..ir.walk import loads
from .distinct import Points, conjuncts, count, count_together, is_index

MULTIPLY, ADD, OTHER = "multiplications", "additions", "others"
_KINDS = {
    tirx.Mul: MULTIPLY,
    **dict.fromkeys((tirx.Add, tirx.Sub), ADD),
    **dict.fromkeys((tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max), OTHER),
}
FUNCTIONS = frozenset(
    (
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "pow", "sqrt", "rsqrt", "hypot"),
        *("erf", "sigmoid", "tanh", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    )
)
"""Functions that take many instructions; any other call takes one instruction or none."""
_FREE = ("if_then_else", "reinterpret", "likely")
_MOST_BRANCHES = 256


@dataclass(frozen=True)
class Work:
    """The work of one launch of a kernel.

    Attributes
    ----------
    arithmetic : mapping
        Type (``float32``) -> ``multiplications``, ``additions`` (and subtractions) and ``others`` (divisions, minima,
        maxima) on elements of tensors. Products of narrower numbers count under the type of their factors: ``int8`` for
        a product with sums in int32.
    calls : mapping
        Name of a function (`FUNCTIONS`) -> calls.
    bytes_read, bytes_written : int
        Distinct bytes of the inputs that are read, and bytes of the outputs.
    """

    arithmetic: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that must move at least once."""
        return self.bytes_read + self.bytes_written

    @property
    def instructions(self) -> dict[str, int]:
        """Type -> the fewest instructions, if each addition is fused with a multiplication.

        The multiplication is of the same type, or of a narrower floating-point type whose products are added in a wider
        one: an instruction multiplies halves and adds to a float32 sum, or a schedule adds some products as halves
        before they are widened.
        """
        found, alone = {}, 0  # multiplications of narrower types that no addition is fused with yet
        for dtype in sorted(self.arithmetic, key=_bits):
            times = Counter(self.arithmetic[dtype])
            left = max(times[ADD] - times[MULTIPLY], 0)
            if "float" in dtype:
                fused = min(left, alone)
                left, alone = left - fused, alone - fused + max(times[MULTIPLY] - times[ADD], 0)
            found[dtype] = times[MULTIPLY] + left + times[OTHER]
        return found

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return asdict(self)


def work(kernel: Kernel, factors: str | None = None) -> Work:
    """Count the work of one launch of a kernel.

    An operation counts once for every distinct place of its operands in the tensors: repeated by loops, or in several
    stages, it has the same value. It does not count where a condition excludes it (padding). Elements of a tensor that
    is used as an index are assumed to be all different.

    Parameters
    ----------
    factors : str, optional
        The type to which a later pass rounds the factors of float32 products in sums (`RoundProducts`).

    Raises
    ------
    Opaque
        If one expression chooses among hundreds of tensors, or is nested too deeply.
    """
    counter = _Counter(kernel, factors)
    try:
        for stage in kernel.stages:
            counter.stage(stage)
    except RecursionError as error:
        raise Opaque("an expression is nested too deeply") from error
    return counter.work()


@dataclass(frozen=True, eq=False)
class _Seen:
    """A visited expression: a number for its form without the names of iterators, the iterators, and its reads.

    `points` has one element for each combination of branches, without indices if the expression reads nothing.
    """

    form: int
    vars: tuple = ()
    points: tuple[Points, ...] = (Points(),)
    reads: bool = False


class _Counter:
    def __init__(self, kernel: Kernel, factors: str | None = None):
        self.kernel, self.factors = kernel, factors
        self.forms: dict[tuple, int] = {}
        self.counted: set[tuple] = set()
        self.arithmetic: dict[str, Counter] = defaultdict(Counter)
        self.calls: Counter = Counter()
        self.read: dict = {buffer: {} for buffer in kernel.inputs}  # buffer -> form -> (points, extents)
        self.extents: Mapping = {}
        self.sums = False  # whether the stage reduces
        self.bound: dict = {}  # variable -> the expression bound to it
        self.seen_through: dict = {}  # intermediate tensor that is a copy or padded -> the stage that writes it
        self.known: dict[tuple, tuple[int, Points]] = {}

    def work(self) -> Work:
        read = 0
        for buffer, maps in self.read.items():
            if maps:
                read += count_together(list(maps.values()), shape_of(buffer)) * _bytes(buffer)
        written = sum(math.prod(shape_of(buffer)) * _bytes(buffer) for buffer in self.kernel.outputs)
        arithmetic = {dtype: dict(found) for dtype, found in sorted(self.arithmetic.items())}
        return Work(arithmetic, dict(sorted(self.calls.items())), read, written)

    def stage(self, stage: Stage) -> None:
        self.extents, self.bound, self.sums = stage.extents, {}, bool(stage.reduction)
        inside = stage.is_pointwise and not any(stage.body.buffer.same_as(each) for each in self.kernel.outputs)
        moves = inside and _moves(stage.body.value)
        if moves or (inside and pads(stage.body.value)):
            self.seen_through[stage.body.buffer] = stage
        if not moves:  # reads of a pure copy count as reads of its source
            self.statement(stage.body)

    def statement(self, node, guard: tuple = ()) -> None:
        if isinstance(node, tirx.SeqStmt):
            for each in node.seq:
                self.statement(each, guard)
        elif isinstance(node, tirx.Bind):
            self.bound[node.var] = self.visit(node.value, guard)
        elif isinstance(node, tirx.IfThenElse):
            self.visit(node.condition, guard)
            for branch in filter(None, (node.then_case, node.else_case)):
                self.statement(branch, guard)
        elif isinstance(node, tirx.BufferStore):
            for index in node.indices:
                self.visit(index, guard, arithmetic=False)
            self.visit(node.value, guard)

    def visit(self, expr, guard: tuple = (), arithmetic: bool = True) -> _Seen:
        """Count the operations of an expression that is evaluated where `guard` holds."""
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return _Seen(self.form(("constant", str(expr.ty.dtype), expr.value)))
        if isinstance(expr, ir.Var):
            return self.bound.get(expr) or _Seen(self.form("variable"), (expr,), (Points(((expr, None),)),))
        if isinstance(expr, ir.TensorLoad):
            return self.load(expr, guard)
        if is_if_then_else(expr) or isinstance(expr, tirx.Select):
            return self.choice(expr, guard, arithmetic)
        parts = [self.visit(part, guard, arithmetic) for part in _operands(expr)]
        seen = self.joined(_kind(expr), parts)
        if arithmetic and seen.reads:
            self.operation(expr, seen, guard)
        return seen

    def load(self, load: ir.TensorLoad, guard: tuple) -> _Seen:
        parts = [self.visit(index, guard, arithmetic=False) for index in load.indices]
        found = Points()
        for index, part, size in zip(load.indices, parts, load.source.shape, strict=True):
            known = Points(((index, int(size)),)) if self.enumerable(index) else None
            found += known or Points(part.points[0].dims, (), exact=False)
        form, vars_ = self.joined_form(("load", load.source), parts)
        if load.source in self.seen_through:
            return _Seen(form, vars_, self.behind(load, guard), True)
        if load.source in self.read:
            self.read[load.source].setdefault((form, self.sizes(vars_)), (found + Points((), guard), self.extents))
        return _Seen(form, vars_, (found,), True)

    def behind(self, load: ir.TensorLoad, guard: tuple) -> tuple[Points, ...]:
        """Return the places that a copy is read from, as if there were no copy: operations on padding are no work."""
        stage = self.seen_through[load.source]
        value = substitute(stage.body.value, dict(zip(stage.spatial, load.indices, strict=True)))
        return self.visit(value, guard, arithmetic=False).points

    def choice(self, expr, guard: tuple, arithmetic: bool) -> _Seen:
        """Count a choice of two values: only the chosen one is evaluated, and a constant is padding, so no work."""
        parts = [expr.condition, expr.true_value, expr.false_value] if isinstance(expr, tirx.Select) else expr.args
        condition, *branches = parts
        known = self.enumerable(condition)
        holds = [conjuncts(condition), conjuncts(_opposite(condition))] if known else [(), ()]
        test = self.visit(condition, guard, arithmetic)
        seen = [self.visit(branch, guard + when, arithmetic) for branch, when in zip(branches, holds, strict=True)]
        form, vars_ = self.joined_form("choice", [test, *seen])
        if not known:
            return _Seen(form, vars_, self.joined("choice", [test, *seen]).points, True)
        reading = [(each, when) for each, when in zip(seen, holds, strict=True) if each.reads]
        chosen = tuple(each + Points((), when) for branch, when in reading for each in branch.points)
        return _Seen(form, vars_, _few(chosen) or (Points(),), bool(reading))

    def enumerable(self, expr) -> bool:
        """Whether an expression is arithmetic on the iterators of the stage."""
        return self.bound.keys().isdisjoint(variables(expr)) and is_index(expr)

    def joined(self, kind, parts: list[_Seen]) -> _Seen:
        points: tuple[Points, ...] = (Points(),)
        for part in parts:
            points = _few(tuple(a + b for a in points for b in part.points))
        return _Seen(*self.joined_form(kind, parts), points, any(part.reads for part in parts))

    def joined_form(self, kind, parts: list[_Seen]) -> tuple[int, tuple]:
        vars_ = tuple(dict.fromkeys(var for part in parts for var in part.vars))
        places = {var: number for number, var in enumerate(vars_)}
        inside = tuple((part.form, tuple(places[var] for var in part.vars)) for part in parts)
        return self.form((kind, inside)), vars_

    def form(self, key) -> int:
        return self.forms.setdefault(key, len(self.forms))

    def sizes(self, vars_: tuple) -> tuple[int, ...]:
        return tuple(self.extents[var] for var in vars_)

    def operation(self, expr, seen: _Seen, guard: tuple) -> None:
        name = function_name(expr) if isinstance(expr, ir.Call) else ""
        kind = OTHER if name and name not in _FREE else _KINDS.get(type(expr))
        key = (seen.form, self.sizes(seen.vars))
        if kind is None or key in self.counted:
            return
        self.counted.add(key)
        times = sum(self.times(each + Points((), guard)) for each in seen.points)
        if name in FUNCTIONS:
            self.calls[name] += times
        else:
            self.arithmetic[self.type(expr)][kind] += times

    def type(self, expr) -> str:
        """Return the type whose arithmetic an operation uses."""
        dtype = _type(expr)
        return self.factors if self.factors and self.sums and dtype == "float32" and _products(expr) else dtype

    def times(self, points: Points) -> int:
        """Return `count` of some points, cached: most operations of a stage have the same points."""
        key = tuple(id(each) for each in (*(index for index, _ in points.dims), *points.conditions))
        key = (key, tuple(size for _, size in points.dims))
        if key not in self.known:
            self.known[key] = count(points, self.extents), points  # the points keep the ids in the key valid
        return self.known[key][0]


def _operands(expr) -> list:
    if isinstance(expr, ir.Call):
        return [each for each in expr.args if isinstance(each, ir.Expr) and type(each).__name__ != "StringImm"]
    return [getattr(expr, name) for name in ("a", "b", "value") if hasattr(expr, name)]


def _moves(value) -> bool:
    """Whether a value is a copy: an element of a tensor, or a choice by place among elements and constants."""
    if is_if_then_else(value):
        return is_index(value.args[0]) and all(map(_moves, value.args[1:]))
    return isinstance(value, ir.TensorLoad | tirx.IntImm | tirx.FloatImm)


def pads(value) -> bool:
    """Whether a value is a choice between tensors and constants."""
    if not is_if_then_else(value):
        return False
    return any(not loads(branch) or pads(branch) for branch in value.args[1:])


def _kind(expr) -> tuple[str, str, str]:
    name = function_name(expr) if isinstance(expr, ir.Call) else type(expr).__name__
    return name, str(expr.ty.dtype), str(len(_operands(expr)))


def _few(points: tuple[Points, ...]) -> tuple[Points, ...]:
    if len(points) > _MOST_BRANCHES:
        raise Opaque(f"an expression chooses among more than {_MOST_BRANCHES} combinations of tensors")
    return points


def _opposite(condition):
    """Return the negation of a condition, as a comparison if possible, else with `Not`."""
    swapped = {tirx.LT: tirx.GE, tirx.GE: tirx.LT, tirx.GT: tirx.LE, tirx.LE: tirx.GT, tirx.EQ: tirx.NE}
    other = swapped.get(type(condition))
    return other(condition.a, condition.b) if other else tirx.Not(condition)


def _type(expr) -> str:
    """Return the type whose arithmetic an operation uses: that of the factors if they are widened for the product."""
    for each in _products(expr):
        narrow = {str(part.value.ty.dtype) for part in (each.a, each.b) if isinstance(part, tirx.Cast)}
        if len(narrow) and isinstance(each.a, tirx.Cast) and isinstance(each.b, tirx.Cast):
            return min(narrow, key=lambda dtype: (_bits(dtype), dtype)).removeprefix("u")
    return str(expr.ty.dtype)


def _products(expr) -> list:
    """Return the operation if it is a product, else the products among its operands."""
    return [expr] if isinstance(expr, tirx.Mul) else [each for each in _operands(expr) if isinstance(each, tirx.Mul)]


def _bits(dtype: str) -> int:
    return int("".join(filter(str.isdigit, dtype)) or 8)


def _bytes(buffer) -> int:
    return (_bits(str(buffer.dtype)) + 7) // 8
