# SPDX-License-Identifier: Apache-2.0
"""The orders in which tensors may be stored, and the kernels for each combination of orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod

from tvm import ir, tirx

from ..ir.block import shape_of
from ..ir.graph import Graph, Node
from ..ir.index_map import variables
from ..ir.kernel import CONSTANTS, Kernel, Stage, emit
from ..ir.storage import reordered
from ..ir.strength_reduction import Simplifier
from ..planner.layout_problem import Order
from ..planner.storage_order import innermost, with_innermost
from .demands import demands, first_step, why_fixed

MOST_ORDERS = 4  # orders of a tensor
MOST_FORMS = 48  # forms of a kernel: with more combinations of orders, at most two tensors change their order


def orders_of(graph: Graph) -> dict:
    """Return the orders in which each tensor of a graph may be stored, the present order first.

    In every other order, the innermost dimension is one along which a kernel walks: the dimension of a reduction, or a
    dimension that a kernel walks together with the innermost dimension of another of its tensors, in one of that
    tensor's orders. Inputs and results of the function, tensors in textures, and tensors of nodes without loop
    structure keep their order.

    Returns
    -------
    dict
        Variable -> orders.
    """
    walks = [_Walks.of(node) for node in graph if node.kernel is not None]
    fixed = {var: _fixed(graph, var) for each in walks for var in each.tensors}
    inner: dict = {var: dict.fromkeys({innermost(shape_of(var))} - {None}) for var in fixed}
    for each in walks:
        for var, dims in each.reduced:
            if not fixed[var]:
                inner[var] |= dict.fromkeys(dims)
    grown = True
    while grown:
        before = sum(map(len, inner.values()))
        for each in walks:
            for var, dim in each.beside(inner):
                if not fixed[var] and len(inner[var]) < MOST_ORDERS:
                    inner[var][dim] = None
        grown = sum(map(len, inner.values())) > before
    return {var: _orders(var, dims) for var, dims in inner.items()}


def _fixed(graph: Graph, var) -> bool:
    return why_fixed(graph, var) is not None or graph.producer(var).kernel.outputs[0].scope() != "global"


def _orders(var, inner: dict[int, None]) -> tuple[Order, ...]:
    """Return the present order, and one order for each other innermost dimension."""
    shape = shape_of(var)
    others = [dim for dim in inner if shape[dim] > 1 and dim != innermost(shape)]
    return (tuple(range(len(shape))), *(with_innermost(len(shape), dim) for dim in others[: MOST_ORDERS - 1]))


@dataclass(frozen=True, eq=False)
class _Walks:
    """The dimensions along which a kernel walks through its tensors.

    Attributes
    ----------
    accesses : list
        For each stage, the variables that it reads or writes, each with the iterators that walk along each dimension.
    reduced : list
        Variables, each with the dimensions along which it is reduced.
    """

    accesses: list[list[tuple[object, list[set]]]]
    reduced: list[tuple[object, list[int]]]

    @classmethod
    def of(cls, node: Node) -> _Walks:
        kernel = node.kernel
        bound = dict(zip(kernel.inputs, node.args, strict=True)) | {kernel.outputs[0]: node.var}
        bound = {buffer: var for buffer, var in bound.items() if isinstance(var, ir.Var)}
        wanted = demands(kernel, node.var.name)
        reduced = [
            (var, sorted({dim for demand in wanted.get(buffer, ()) for dim in demand.dims}))
            for buffer, var in bound.items()
        ]
        return cls([_accesses(stage, bound) for stage in kernel.stages], reduced)

    @property
    def tensors(self) -> list:
        """The variables."""
        return [var for var, _ in self.reduced]

    def beside(self, inner: dict) -> Iterator[tuple[object, int]]:
        """Yield variables and dimensions that the kernel walks together with an innermost dimension of another one."""
        for stage in self.accesses:
            for var, along in stage:
                fast = {it for other, of in stage if other is not var for dim in inner[other] for it in of[dim]}
                yield from ((var, dim) for dim, iters in enumerate(along) if iters & fast)


def _accesses(stage: Stage, bound: dict) -> list[tuple[object, list[set]]]:
    simplifier, made = Simplifier(stage.extents), [(load.source, load.indices) for load in stage.loads]
    if isinstance(stage.body, tirx.BufferStore):
        made.append((stage.body.buffer, stage.body.indices))
    return [(bound[buffer], _steps(list(indices), stage, simplifier)) for buffer, indices in made if buffer in bound]


def _steps(indices: list, stage: Stage, simplifier: Simplifier) -> list[set]:
    """Return, for each index, the iterators whose first step increases it by 1."""
    moving = [[var for var in variables(at) if stage.extents.get(var, 1) > 1] for at in indices]
    return [{v for v in vars_ if first_step(at, v, simplifier) == 1} for at, vars_ in zip(indices, moving, strict=True)]


@dataclass(frozen=True, eq=False)
class LayoutForms:
    """A kernel with its tensors in each combination of their orders.

    Attributes
    ----------
    node : Node
    orders : mapping
        Variable -> its orders (`orders_of`).
    """

    node: Node
    orders: dict

    @cached_property
    def tensors(self) -> tuple:
        """Variables that the kernel writes (the first) and reads."""
        return (self.node.var, *(arg for arg in self.node.args if isinstance(arg, ir.Var)))

    @cached_property
    def now(self) -> tuple[Order, ...]:
        """The present combination of orders."""
        return tuple(self.orders[var][0] for var in self.tensors)

    @cached_property
    def combinations(self) -> list[tuple[Order, ...]]:
        """All combinations, the present one first; above `MOST_FORMS`, those with at most two changed orders."""
        choices = [self.orders[var] for var in self.tensors]
        if prod(map(len, choices)) <= MOST_FORMS:
            return list(product(*choices))
        found = [self.now]
        for count in (1, 2):
            for places in combinations(range(len(choices)), count):
                for orders in product(*(choices[place][1:] for place in places)):
                    new = dict(zip(places, orders, strict=True))
                    found.append(tuple(new.get(place, order) for place, order in enumerate(self.now)))
        return found

    def kernel(self, combination: tuple[Order, ...]) -> Kernel:
        """Return the kernel with its tensors in the orders of a combination."""
        kernel = self.node.kernel
        wanted = dict(zip(self.tensors, combination, strict=True))
        for place, arg in enumerate([*self.node.args, self.node.var]):
            order = wanted.get(arg) if isinstance(arg, ir.Var) else None
            if order is not None and order != self.orders[arg][0]:
                buffer = kernel.inputs[place] if place < len(kernel.inputs) else kernel.outputs[0]
                kernel, _ = reordered(kernel, buffer, order)
        return kernel

    def func(self, combination: tuple[Order, ...]) -> tirx.PrimFunc:
        """Return the kernel as a PrimFunc with an attribute that lists its constant parameters."""
        places = [place for place, arg in enumerate(self.node.args) if isinstance(arg, ir.Constant)]
        return emit(self.kernel(combination), {CONSTANTS: places} if places else None)
