# SPDX-License-Identifier: Apache-2.0
"""Items of an open dimension: whether a model computes each of them from itself alone.

A batch is the usual case: image ``b`` of the results depends on image ``b`` of the inputs, and on weights. Then any
number of items can be computed in tiles, one after the other. The proof looks at the loops of each operator at two
sizes. Of a tensor whose shape differs, item ``b`` has the indices ``b * each + r`` along one axis, for ``r`` below
`Share.each`. In every stage that writes such a tensor, the iterator along that axis is replaced by ``b * each + r``.
Each index that reads such a tensor along its axis must then have the form ``b * each + e``, and nothing else may
contain ``b``: neither ``e``, nor another index, nor a condition. As indices stay inside of their tensors for all
``b``, ``e`` is from 0 to ``each - 1``, and the stage reads item ``b`` only, and treats all items alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx

from .._tvm import mapped, simplified
from ..ir.graph import CALL_TIR
from ..ir.index_map import variables
from ..ir.kernel import Kernel, Opaque, Stage, parse, shape_of, substitute
from ..ir.mask_positions import Extent
from ..ir.public_functions import MAIN
from ..ir.walk import collect

_WORDS = re.compile(r"\w+|[^\w\s]")
# Of blocks: they follow from loads and stores, and one of a single place is written as an index.
_REGIONS = re.compile(r"^\s*T\.(reads|writes)\(.*$", re.MULTILINE)
_SLICE = "strided_slice"  # the operator whose bounds are integers among its arguments


class Mixed(Exception):
    """An item depends on another one; the message names the operator, and says why."""


@dataclass(frozen=True)
class Share:
    """Where the items of a tensor lie, or its positions.

    Attributes
    ----------
    axis : int
        The axis along which items follow one another.
    each : int
        Elements of an item along it.
    more, step : int
        Of positions: there are ``(length + more) // step`` of them (`ir.mask_positions.Extent`).
    """

    axis: int
    each: int
    more: int = 0
    step: int = 1

    @property
    def extent(self) -> Extent:
        """The elements along the axis."""
        return Extent(self.each, self.more, self.step)

    def facts(self) -> dict[str, int]:
        """Return what `ir.several_sizes.TILE` says of it."""
        rest = {"more": self.more, "step": self.step} if self.extent.of_one != Extent() else {}
        return {"axis": self.axis, "each": self.each, **rest}


@dataclass
class ItemWork:
    """The facts about a model whose items do not depend on each other.

    Attributes
    ----------
    inputs, outputs : list of Share or None
        Of each input and each output; None for one that all items have in common.
    sums : list of tuple of int
        Of each operator with a sum: its steps for one item, and the elements of the constants that it reads.
    kernels : int
        Operators that compute something for items.
    """

    inputs: list[Share | None]
    outputs: list[Share | None] = field(default_factory=list)
    sums: list[tuple[int, int]] = field(default_factory=list)
    kernels: int = 0

    @property
    def per_item(self) -> dict:
        """The sums and kernels as JSON, from which `of` makes them again."""
        return {"sums": self.sums, "kernels": self.kernels}

    @classmethod
    def of(cls, per_item: Mapping) -> ItemWork:
        """Return the work that `per_item` told, without inputs and outputs."""
        return cls([], [], [(steps, weights) for steps, weights in per_item["sums"]], per_item["kernels"])


Shares = Share | None | list
"""Of a tensor, or of the tensors of a tuple."""
SameNumbers = Callable[[np.ndarray, np.ndarray], bool]
Grows = Callable[[int, int], bool]
LOOPS = tvm.transform.Sequential(
    [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(),
    ]
)
"""From operators to loop programs."""


def item_work(small: tvm.IRModule, large: tvm.IRModule, counts: tuple[int, int]) -> ItemWork:
    """Prove that no item of a model depends on another one, and return the work of an item.

    Parameters
    ----------
    small, large : tvm.IRModule
        One model after ``LegalizeOps``, at two numbers of items. Function ``main`` has them.
    counts : tuple of int
        The numbers of items, each at least 2.

    Raises
    ------
    Mixed
        If an operator mixes items, or has no loops that can be read.
    """
    return _Proof(small, large, counts).work()


def require_same_graph(
    one: tvm.IRModule,
    other: tvm.IRModule,
    counts: tuple[int, int],
    same: SameNumbers | None = None,
    grows: Grows | None = None,
) -> None:
    """Refuse a model whose operators depend on the size of an open dimension.

    Parameters
    ----------
    one, other : tvm.IRModule
        One model before ``LegalizeOps``, at two numbers of items.
    counts : tuple of int
        The sizes.
    same : callable, optional
        ``same(array, other array)``: whether two constants are alike; by default, whether they have the same numbers
        for each item.
    grows : callable, optional
        ``grows(size, other size)``: whether two sizes in a shape, or bounds of a slice, follow from the counts; by
        default, whether they are multiples of them.

    Raises
    ------
    Mixed
        If the models differ in an operator, an attribute or a constant. A shape may have a dimension with the size.
    """
    same = same or (lambda *arrays: _constants_alike(*arrays, counts))
    grows = grows or (lambda a, b: a * counts[1] == b * counts[0])
    first, second = (list(bindings_of(mod)) for mod in (one, other))
    known = dict(zip((one[MAIN].params), other[MAIN].params, strict=True))
    for a, b in zip(first, second):
        name = operator_of(a.value)
        kernels = [mod[each.value.args[0]] for mod, each in ((one, a), (other, b)) if _calls_kernel(each.value)]
        if len(kernels) == 2 and _kernels_alike(*kernels, grows):
            known[a.value.args[0]] = b.value.args[0]
        if not _alike(a.value, b.value, known, grows, same) or not _types_alike(a.var.ty, b.var.ty, grows):
            raise Mixed(f"operator '{name}' ('{a.var.name}') differs with the size of the open dimension")
        known[a.var] = b.var
    if len(first) != len(second):
        raise Mixed("the model has other operators for another size")


class _Proof:
    def __init__(self, small: tvm.IRModule, large: tvm.IRModule, counts: tuple[int, int]):
        self.small, self.large, self.counts = small, large, counts
        self.shares: dict[ir.Var, Shares] = {}

    def work(self) -> ItemWork:
        params = zip(self.small[MAIN].params, self.large[MAIN].params, strict=True)
        for before, var in params:
            self.shares[var] = self._of_type(before.ty, var.ty, f"input '{var.name}'")
        self.found = ItemWork([self.shares[var] for var in self.large[MAIN].params])
        bindings = list(bindings_of(self.small)), list(bindings_of(self.large))
        if len(bindings[0]) != len(bindings[1]):
            raise Mixed("the model has other operators for another size")
        for before, binding in zip(*bindings):
            self.shares[binding.var] = self._binding(before, binding)
        result = self._value(self.small[MAIN].body.body, self.large[MAIN].body.body)
        self.found.outputs = result if isinstance(result, list) else [result]
        return self.found

    def _binding(self, before: relax.Binding, binding: relax.Binding) -> Shares:
        value = binding.value
        if not isinstance(value, ir.Call):
            return self._value(before.value, value)
        name = operator_of(value)
        shares = self._of_type(before.var.ty, binding.var.ty, f"operator '{name}'")
        if value.op != CALL_TIR:
            if _any(shares) or any(_any(self.shares.get(var)) for var in variables(value)):
                raise Mixed(f"operator '{name}' ('{binding.var.name}') has no loops that can be read")
            return shares
        arguments = [self._value(*pair) for pair in zip(before.value.args[1].fields, value.args[1].fields, strict=True)]
        if not _any(shares) and not _any(arguments):
            return shares
        try:
            kernels = [parse(mod[call.args[0]]) for mod, call in ((self.small, before.value), (self.large, value))]
            self._kernel(*kernels, dict(zip(kernels[1].inputs, arguments, strict=True)))
        except Opaque as reason:
            raise Mixed(f"operator '{name}' ('{binding.var.name}') has no loops that can be read: {reason}") from None
        except Mixed as reason:
            raise Mixed(f"operator '{name}' ('{binding.var.name}') {reason}") from None
        self._count(kernels[1], arguments)
        return shares

    def _value(self, before, value) -> Shares:
        if isinstance(value, ir.Tuple):
            return [self._value(*pair) for pair in zip(before.fields, value.fields, strict=True)]
        if isinstance(value, relax.TupleGetItem):
            return self.shares[value.tuple_value][int(value.index)]
        if isinstance(value, ir.Var):
            return self.shares[value]
        if isinstance(value, ir.Constant) and hasattr(value.value, "numpy"):
            return self._of_constant(before, value)
        if isinstance(value, relax.ShapeExpr | ir.Expr) and not variables(value):
            return None
        raise Mixed(f"a value of type {type(value).__name__} is no operator")

    def _of_type(self, before: ir.Type, ty: ir.Type, what: str) -> Shares:
        if isinstance(ty, relax.TupleType):
            return [self._of_type(*pair, what) for pair in zip(before.fields, ty.fields, strict=True)]
        shapes = [tuple(map(int, each.shape)) if getattr(each, "shape", None) else () for each in (before, ty)]
        return share_of(*shapes, self.counts, what)

    def _of_constant(self, before, constant) -> Share | None:
        arrays = before.value.numpy(), constant.value.numpy()
        found = share_of(arrays[0].shape, arrays[1].shape, self.counts, "a constant")
        if not _same_numbers(*arrays, self.counts, found):
            raise Mixed("reads a constant that differs with the number of items, or between items")
        return found

    def _kernel(self, small: Kernel, large: Kernel, shares: dict) -> None:
        """Check each stage of an operator; `shares` are those of its inputs."""
        if len(small.stages) != len(large.stages):
            raise Mixed("has other loops for another number of items")
        for before, stage in zip(small.stages, large.stages):
            for one, other in zip(before.outputs, stage.outputs, strict=True):
                shares[other] = share_of(shape_of(one), shape_of(other), self.counts, "")
            _check_stage(stage, shares, self.counts[1])

    def _count(self, kernel: Kernel, arguments: Sequence[Shares]) -> None:
        self.found.kernels += 1
        common = [buffer for buffer, share in zip(kernel.inputs, arguments, strict=True) if share is None]
        for stage in (each for each in kernel.stages if each.reduction):
            steps, read = prod(stage.extents.values()), [buffer for buffer in common if stage.reads(buffer)]
            self.found.sums.append((steps // self.counts[1], sum(prod(shape_of(buffer)) for buffer in read)))


def share_of(small: Sequence[int], large: Sequence[int], counts: tuple[int, int], what: str) -> Share | None:
    """Return where the items of a tensor lie, from its shapes at two numbers of items; None if it has none.

    Raises
    ------
    Mixed
        If the shapes are no multiples of the numbers along one axis.
    """
    if tuple(small) == tuple(large):
        return None
    axes = [axis for axis, (a, b) in enumerate(zip(small, large)) if a != b]
    if len(small) != len(large) or len(axes) != 1:
        raise Mixed(f"{what} has the items along several dimensions".strip())
    (axis,) = axes
    each, rest = divmod(small[axis], counts[0])
    if rest or each * counts[1] != large[axis]:
        raise Mixed(f"{what} has a dimension that is no multiple of the number of items".strip())
    return Share(axis, each)


def _check_stage(stage: Stage, shares: Mapping, count: int) -> None:
    """Refuse a stage that writes or reads something else of an item than what the module's docstring describes."""
    written = [shares[buffer] for buffer in stage.outputs]
    stores = collect(stage.body, tirx.BufferStore)
    if any((share is None) != (written[0] is None) for share in written):
        raise Mixed("writes some results for each item, and some for all")
    if written[0] is None:
        if any(shares.get(load.source) is not None for load in stage.loads):
            raise Mixed("computes one result from all items")
        return
    along = [store.indices[shares[store.buffer].axis] for store in stores]
    var, each = along[0], written[0].each
    if not all(index.same_as(var) for index in along) or not any(var.same_as(one) for one in stage.spatial):
        raise Mixed("has no loop over the items")
    if any(share.each != each for share in written):
        raise Mixed("writes results of several sizes for an item")
    item, rest = tirx.Var("item", var.ty), tirx.Var("rest", var.ty)
    analyzer = sym.Analyzer()
    for one, extent in {**stage.extents, item: count, rest: each}.items():
        analyzer.bind(one, ir.Range(0, tirx.IntImm(one.ty.dtype, extent)))
    inside = item * tirx.const(each, var.ty.dtype) + rest if each > 1 else item
    statements = [substitute(body, {var: inside}) for body in (stage.body, stage.init) if body is not None]

    def own(load):
        indices, share = [analyzer.simplify(index) for index in load.indices], shares.get(load.source)
        if share is not None:
            start = item * tirx.const(share.each, var.ty.dtype)
            indices[share.axis] = analyzer.simplify(indices[share.axis] - start)
        return tirx.BufferLoad(load.source, indices)

    for statement in statements:
        for expr in _expressions(statement, shares):
            apart = simplified(analyzer, mapped(expr, (ir.TensorLoad, own)))
            if any(found.same_as(item) for found in variables(apart)):
                raise Mixed("reads other items, or treats items differently")


def _expressions(statement: tirx.Stmt, shares: Mapping) -> Iterator:
    """Yield the expressions that a statement evaluates, without the index along which it writes items."""
    for node in collect(statement, (tirx.BufferStore, tirx.Bind, tirx.IfThenElse)):
        if isinstance(node, tirx.BufferStore):
            yield from (index for axis, index in enumerate(node.indices) if axis != shares[node.buffer].axis)
            yield node.value
        else:
            yield node.value if isinstance(node, tirx.Bind) else node.condition


def bindings_of(mod: tvm.IRModule) -> Iterator[relax.Binding]:
    """Yield the bindings of ``main``; raise `Mixed` at one that checks a shape at run time."""
    for block in mod[MAIN].body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.VarBinding):
                raise Mixed(f"'{binding.var.name}' is checked when the model runs")
            yield binding


def operator_of(value) -> str:
    """Return the name of an operator, for sentences."""
    if not isinstance(value, ir.Call):
        return type(value).__name__
    if value.op == CALL_TIR:
        return value.args[0].name_hint
    return getattr(value.op, "name", "call").removeprefix("relax.")


def _any(shares: Shares) -> bool:
    return any(map(_any, shares)) if isinstance(shares, list) else shares is not None


def _same_numbers(small: np.ndarray, large: np.ndarray, counts: tuple[int, int], share: Share | None) -> bool:
    """Whether a constant holds the same numbers at both numbers of items, and for each item."""
    if share is None:
        return np.array_equal(small, large) or (small.dtype.kind == "f" and np.array_equal(small, large, True))
    first = small.take(range(share.each), share.axis)
    parts = [
        part for array, count in zip((small, large), counts, strict=True) for part in np.split(array, count, share.axis)
    ]
    return all(np.array_equal(part, first) for part in parts)


def _alike(one, other, known: Mapping, grows: Grows, same: SameNumbers) -> bool:
    """Whether two expressions are the same for two sizes, under pairs of variables."""
    if isinstance(one, ir.Var):
        return known.get(one) == other
    if type(one) is not type(other):
        return False
    if isinstance(one, ir.GlobalVar):
        return known.get(one) == other
    if isinstance(one, ir.Call):
        alike = one.op == other.op and tvm_ffi.structural_equal(one.attrs, other.attrs)
        pairs, bounds = zip(one.args, other.args), []
        if operator_of(one) == _SLICE and one.args[0].ty.ndim == other.args[0].ty.ndim:
            sizes = zip(one.args[0].ty.shape, other.args[0].ty.shape)
            bounds = [(int(a), int(b)) for a, b in sizes if int(a) != int(b) and grows(int(a), int(b))]
        sliced = operator_of(one) == _SLICE
        return (
            alike
            and len(one.args) == len(other.args)
            and all(
                _alike(a, b, known, grows, same) or (sliced and _bounds_alike(a, b, grows, bounds)) for a, b in pairs
            )
        )
    if isinstance(one, ir.Tuple):
        pairs = zip(one.fields, other.fields)
        return len(one.fields) == len(other.fields) and all(_alike(a, b, known, grows, same) for a, b in pairs)
    if isinstance(one, relax.TupleGetItem):
        return known.get(one.tuple_value) == other.tuple_value and one.index == other.index
    if isinstance(one, ir.Constant) and hasattr(one.value, "numpy"):
        return one.value.same_as(other.value) or same(one.value.numpy(), other.value.numpy())
    if isinstance(one, relax.ShapeExpr):
        pairs = [(int(a), int(b)) for a, b in zip(one.values, other.values)]
        return len(one.values) == len(other.values) and all(a == b or grows(a, b) for a, b in pairs)
    return tvm_ffi.structural_equal(one, other)


def _types_alike(one: ir.Type, other: ir.Type, grows: Grows) -> bool:
    """Whether results have the same sizes, or ones that grow: a slice of the first 50 has 50 of 64 items."""
    if isinstance(one, relax.TupleType):
        return all(_types_alike(*pair, grows) for pair in zip(one.fields, other.fields, strict=True))
    pairs = zip(*([int(dim) for dim in each.shape] if getattr(each, "shape", None) else [] for each in (one, other)))
    return all(a == b or grows(a, b) for a, b in pairs)


def _calls_kernel(value) -> bool:
    return isinstance(value, ir.Call) and value.op == CALL_TIR


def _kernels_alike(one: tirx.PrimFunc, other: tirx.PrimFunc, grows: Grows) -> bool:
    """Whether two kernels are the same but for numbers that grow."""
    plain = [
        each.without_attr("global_symbol") if "global_symbol" in (each.attrs or {}) else each for each in (one, other)
    ]
    texts = [_WORDS.findall(_REGIONS.sub("", func.script())) for func in plain]
    return len(texts[0]) == len(texts[1]) and all(
        a == b or (a.isdecimal() and b.isdecimal() and grows(int(a), int(b))) for a, b in zip(*texts)
    )


def _bounds_alike(one, other, grows: Grows, ends: Sequence[tuple[int, int]]) -> bool:
    """Whether the bounds of a slice are the same, grow with the number of items, or are as far before an end."""
    if not (isinstance(one, ir.Tuple) and isinstance(other, ir.Tuple) and len(one.fields) == len(other.fields)):
        return False
    pairs = [[getattr(each, "value", None) for each in pair] for pair in zip(one.fields, other.fields)]
    return all(
        isinstance(a, int)
        and isinstance(b, int)
        and (a == b or grows(a, b) or any(end - a == other - b for end, other in ends))
        for a, b in pairs
    )


def _constants_alike(one: np.ndarray, other: np.ndarray, counts: tuple[int, int]) -> bool:
    try:
        return _same_numbers(one, other, counts, share_of(one.shape, other.shape, counts, ""))
    except Mixed:
        return False
