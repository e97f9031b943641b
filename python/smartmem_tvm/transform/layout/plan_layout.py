# SPDX-License-Identifier: Apache-2.0
"""PlanLayout: choose the storage orders of all tensors of a graph together, by the kernels' costs (FluidML 3)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.layout_forms import LayoutForms, orders_of
from ...ir.graph import Graph, Node, graphs, rewrite_graphs
from ...ir.kernel import DECISIONS, Kernel
from ...ir.storage import store_as
from ...planner.layout_exact import Unsolved, exact_layouts
from ...planner.layout_problem import EXACT, FLUID, KernelCost, LayoutProblem, Order
from ...planner.layout_sequences import fluid_layouts
from ...planner.storage_order import KEPT, MOVED

_logger = logging.getLogger(__name__)

Costs = Callable[[tirx.PrimFunc, tirx.PrimFunc], float | None]
"""Seconds of a launch of an unscheduled kernel, or None if not known; the second argument is the same kernel with its
tensors as they are stored now. Attribute ``layout_free_buffers`` says which parameters are constants,
``smartmem.decisions`` which loop order the kernel has."""
LoopOrders = Callable[[Kernel], Sequence[Mapping[str, int]]]
"""Loop orders that a kernel may be scheduled in, as decisions; the first is its rule's own (`schedule.loop_orders`)."""


def _own_order(_: Kernel) -> Sequence[Mapping[str, int]]:
    return ({},)


@tvm.transform.module_pass(opt_level=0, name="smartmem.PlanLayout")
class PlanLayout:
    """Choose the storage orders of all tensors together, so that the kernels take least (FluidML, Algorithms 1 to 3).

    Before::

        y[n, c, h, w] = conv(x);   z = layer_norm(y, axis=c);   u = conv(y)

    After, if the measured times of the three kernels are least together that way::

        y'[n, h, w, c] = conv(x);  z = layer_norm(y', axis=c);  u = conv(y')

    Only the stores of the producer and the loads of the readers change: there is no kernel for the transition.
    `analysis.layout_forms.orders_of` gives the orders to choose from; each combination is taken with the fastest loop
    order of its matmuls. Orders without a measurement are not chosen, nor is a plan slower than the present orders.

    Parameters
    ----------
    planner : str
        ``fluid``: dynamic programming along sequences (`planner.layout_sequences`); ``exact``: an integer program
        (`planner.layout_exact`). Where that fails, ``fluid`` takes its place, and a warning says why.
    costs : callable, optional
        See `Costs`.
    loops : callable, optional
        See `LoopOrders`; without it, each kernel keeps its rule's loop order.
    time_limit : float
        Seconds for the integer program.
    """

    def __init__(
        self, planner: str = FLUID, costs: Costs | None = None, loops: LoopOrders = _own_order, time_limit: float = 60.0
    ):
        self.planner, self.costs, self.loops, self.time_limit = planner, costs, loops, time_limit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, self._plan)

    def _plan(self, graph: Graph) -> list[dict]:
        costed = CostedGraph.of(graph, self.costs or (lambda *_: None), self.loops)
        if not (costed.known or costed.open):
            return []  # no kernel has more than one form
        planner, choice = self._choose(costed)
        if choice is None:
            return [_summary(costed, planner, {})]
        log = _decisions(costed, choice)
        for node, forms in costed.forms.items():
            loops = costed.loops.get((node, tuple(choice[var] for var in forms.tensors)))
            node.attrs = {**node.attrs, **({DECISIONS: loops} if loops else {})}
        moved = [(node, choice[node.var]) for node in costed.forms if choice[node.var] != costed.orders[node.var][0]]
        for node, order in moved:
            store_as(graph, node, order)
        return [*log, _summary(costed, planner, choice)]

    def _choose(self, costed: CostedGraph) -> tuple[str, dict | None]:
        problem, planner = costed.problem, self.planner
        if costed.open and not costed.known:
            _logger.warning(
                "layout='%s' has no measured times of %d kernels with their tensors in other orders: the orders stay "
                "as they are; `smartmem profile MODEL --layout %s` measures these times.",
                planner,
                costed.open,
                planner,
            )
            return "none", None
        if costed.open:
            _logger.warning(
                "layout='%s': of %d kernels not all forms were measured; those are not chosen.", planner, costed.open
            )
        if planner == EXACT:
            try:
                return EXACT, exact_layouts(problem, self.time_limit)
            except Unsolved as why:
                _logger.warning("layout='exact': %s; layout='fluid' decides.", why)
        return FLUID, fluid_layouts(problem)


@dataclass
class CostedGraph:
    """A graph and the problem of its layouts.

    Attributes
    ----------
    orders : dict
        Variable -> its storage orders.
    forms : dict
        Node -> its kernel in other orders.
    problem : LayoutProblem
    loops : dict
        Node and combination -> the fastest loop order, where it is not the rule's own.
    known, open : int
        Numbers of nodes with any measurement, and of nodes whose measurements are incomplete.
    """

    orders: dict
    forms: dict[Node, LayoutForms]
    problem: LayoutProblem
    loops: dict = field(default_factory=dict)
    known: int = 0
    open: int = 0

    @classmethod
    def of(cls, graph: Graph, costs: Costs, loops: LoopOrders) -> CostedGraph:
        """Return the graph with its layout problem, asking `costs` for every form."""
        orders = orders_of(graph)
        forms = {node: LayoutForms(node, orders) for node in graph if node.kernel is not None}
        found = cls(orders, forms, LayoutProblem(orders, ()))
        ask, kernels = _Asker(costs, loops), []
        for node, each in forms.items():
            seconds = ask(each) if len(each.combinations) > 1 or len(loops(node.kernel)) > 1 else {}
            measured = {at: time for at, (time, _) in seconds.items() if time is not None}
            found.known += bool(measured)
            found.open += len(measured) < len(seconds)
            # Without the time of the present orders there is nothing to compare with: the kernel's tensors stay.
            measured = measured if each.now in measured else {each.now: 0.0}
            found.loops |= {(node, at): loop for at, (_, loop) in seconds.items() if loop}
            kernels.append(KernelCost(node.var.name, node.var, each.tensors[1:], measured))
        found.problem = LayoutProblem(orders, kernels)
        return found


@dataclass(frozen=True, eq=False)
class Question:
    """A kernel to be measured, in all its forms.

    Attributes
    ----------
    base : PrimFunc
        The kernel with its tensors as they are stored now.
    forms : tuple of PrimFunc
        All forms, `base` in other loop orders included.
    """

    base: tirx.PrimFunc
    forms: tuple[tirx.PrimFunc, ...]


def layout_questions(mod: tvm.IRModule, loops: LoopOrders = _own_order) -> list[Question]:
    """Return the kernels that `PlanLayout` needs times of, each once; kernels with one form are left out."""
    asked: dict = {}

    def note(func: tirx.PrimFunc, base: tirx.PrimFunc) -> None:
        key = tvm_ffi.structural_hash(base)
        asked.setdefault(key, (base, []))[1].append(func)

    for graph in graphs(mod):
        CostedGraph.of(graph, note, loops)
    return [Question(base, tuple(forms)) for base, forms in asked.values()]


class _Asker:
    """Cache of costs, which asks for each distinct kernel once."""

    def __init__(self, costs: Costs, loops: LoopOrders):
        self.costs, self.loops, self.answers = costs, loops, {}

    def __call__(self, forms: LayoutForms) -> dict[tuple[Order, ...], tuple[float | None, dict]]:
        """Return the seconds and loop order of each combination."""
        base = forms.func(forms.now)
        key = tvm_ffi.structural_hash(base)
        return {at: self._answer((key, at), base, forms) for at in forms.combinations}

    def _answer(self, key: tuple, base: tirx.PrimFunc, forms: LayoutForms) -> tuple[float | None, dict]:
        if key not in self.answers:
            ways = [(self._seconds(func, base), order) for func, order in self._in_loop_orders(forms, key[1])]
            known = [each for each in ways if each[0] is not None]
            self.answers[key] = min(known, key=lambda each: each[0], default=(None, {}))
        return self.answers[key]

    def _in_loop_orders(self, forms: LayoutForms, combination: tuple[Order, ...]) -> Iterator[tuple]:
        """Yield a kernel with its tensors in the orders of `combination`, in each loop order."""
        func = forms.func(combination)
        for order in self.loops(forms.node.kernel):
            yield (func.with_attr(DECISIONS, dict(order)) if order else func), dict(order)

    def _seconds(self, func: tirx.PrimFunc, base: tirx.PrimFunc) -> float | None:
        seconds = self.costs(func, base)
        if seconds is None or (math.isfinite(seconds) and seconds > 0):
            return seconds
        _logger.warning(
            "the costs hold %s seconds for a kernel, which is no time: this form is not considered.", seconds
        )
        return None


def _decisions(costed: CostedGraph, choice: dict) -> list[dict]:
    """Return, for each tensor with a choice, the chosen order, and the time of all kernels with the other orders."""
    log = []
    for node in costed.forms:
        orders = costed.orders[node.var]
        if len(orders) == 1:
            continue
        seconds = costed.problem.alternatives(node.var, choice)
        order = choice[node.var]
        others = ", ".join(f"{_milliseconds(seconds[each])} as {list(each)}" for each in orders if each != order)
        log.append(
            {
                "pass": "PlanLayout",
                "tensor": node.var.name,
                "shape": [int(dim) for dim in node.var.ty.shape],
                "order": list(order),
                "action": KEPT if order == orders[0] else MOVED,
                "seconds": {" ".join(map(str, each)): _number(seconds[each]) for each in orders},
                "reason": f"all kernels together take least with this order; {_milliseconds(seconds[order])}, {others}",
            }
        )
    return log


def _summary(costed: CostedGraph, planner: str, choice: dict) -> dict:
    problem = costed.problem
    return {
        "pass": "PlanLayout",
        "planner": planner,
        "tensors": sum(len(each) > 1 for each in costed.orders.values()),
        "moved": sum(order != problem.now[var] for var, order in choice.items()),
        "seconds_now": _number(problem.seconds(problem.now)),
        "seconds": _number(problem.seconds(choice or problem.now)),
        "unmeasured": costed.open,
    }


def _number(seconds: float) -> float | None:
    return float(f"{seconds:.6g}") if math.isfinite(seconds) else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.6g} ms" if math.isfinite(seconds) else "not measured"
