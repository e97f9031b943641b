# SPDX-License-Identifier: Apache-2.0
"""Decide whether two kernels fuse: DNNFusion's mapping check, constraint check and profile (section 4.3).

Green cells of Table 3 fuse, red cells do not. For a yellow cell, measured times decide if a profile store has both the
fused kernel and its parts. Otherwise this cost model decides; it also bounds the recomputation in green cells:

1. An expensive value (above `CHEAP_OPERATIONS`) is never evaluated more than once per element: not inside a reduction
   that reads it again and again, and not in two readers.
2. A value with several readers is computed in each of them only if that moves no more bytes than storing it; a kernel
   launch counts as `LAUNCH_BYTES`.
3. A kernel holds at most `MOST_LOADS` operands per element (registers), `MOST_LOCAL_BYTES` of an intermediate result
   at once (local memory), `MOST_CALLS` function calls per element and indices of `MOST_DIVISIONS` divisions.
4. Expressions are trees: a value of more than `MOST_LOADS` operands is copied to no second reader, and loads nest, one
   in the index of the next, no deeper than `MOST_NESTED`.

`tables.fusion_policy` has the limits, and says which kinds of fusion there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from tvm import ir, tirx

from ..ir.compose import can_reindex, may_inline, nests_too_deep, reads_once
from ..ir.graph import Graph, Node, too_wide
from ..ir.index_map import division_count, variables
from ..ir.kernel import Kernel, emit, shape_of
from ..ir.movement import movement
from ..ir.sizes import data_bytes, number_bytes
from ..tables.action import TABLE_5, Action
from ..tables.fusion_policy import (
    CHEAP_OPERATIONS,
    FORBIDDEN,
    LAUNCH_BYTES,
    MOST_CALLS,
    MOST_DIVISIONS,
    MOST_INPUTS,
    MOST_LOADS,
    MOST_LOCAL_BYTES,
    MOST_REPEATED,
    UNPACKED_CYCLES,
    may_fuse,
)
from ..tables.mapping_type import TABLE_3, FusionVerdict, MappingType
from .classify import mapping_type, quadrant, reduces, stage_calls, stage_cost, stage_divisions
from .fusion_price import NO_PRICE, PRICIER, Prices, Verdict, evaluations, judge, position, repeats_in_windows

MEASURED, SCHEDULES, POLICY = "profile", "schedules", "policy"
_TAKES_EPILOGUE = (Action.TRY_FUSE, Action.ELIMINATE_SECOND)


class Profiles(Protocol):
    """Measured times of kernels; `tune.profile_store.ProfileStore` is one implementation."""

    def compare(self, fused: tuple[tirx.PrimFunc, ...], parts: tuple[tirx.PrimFunc, ...]) -> tuple[float, float] | None:
        """Return the seconds of the fused kernels and of the parts, None if some of them were never measured."""

    def latency(self, func: tirx.PrimFunc) -> float | None:
        """Return the seconds of one launch of an unscheduled PrimFunc, None if it was never measured."""

    def form_latency(self, func: tirx.PrimFunc, base: tirx.PrimFunc) -> float | None:
        """Return the seconds of `func`, a form of the kernel `base`, so that forms of one kernel can be compared."""


@dataclass(frozen=True)
class FusionDecision:
    """Whether to fuse, the reason, and the source of the decision: a table, a profile, or the cost model."""

    fuse: bool
    reason: str
    decided_by: str = "cost model"
    verdict: Verdict = NO_PRICE

    @property
    def noted(self) -> dict:
        """Entry for the log: the source of the decision, and the cost of both ways if known."""
        return {"decided_by": self.decided_by, **self.verdict.noted}

    @property
    def worth_logging(self) -> bool:
        """Whether the log should show the decision: a fusion, or a refusal by anything but a table or a limit."""
        return self.fuse or self.verdict.refuses or self.decided_by.startswith((MEASURED, SCHEDULES, POLICY))


class FusionCheck:
    """Fusion decisions for one graph; mapping types are computed once per kernel."""

    def __init__(
        self,
        graph: Graph,
        profiles: Profiles | None = None,
        prices: Prices | None = None,
        is_product: Callable[[Kernel], bool] | None = None,
    ):
        self.graph = graph
        self.profiles, self.prices, self.is_product = profiles, prices, is_product
        self._types: dict[tuple[Kernel, tuple], MappingType] = {}
        self._asked: dict[tuple, FusionDecision] = {}

    def type_of(self, node: Node) -> MappingType:
        """Return the mapping type of a node; its constants belong to the operator."""
        key = node.kernel, node.constants  # nodes of one PrimFunc share a kernel, but not its arguments
        if key not in self._types:
            self._types[key] = mapping_type(*key)
        return self._types[key]

    def append(self, producer: Node, node: Node) -> FusionDecision:
        """Decide whether pointwise `node` becomes the epilogue of the reduction `producer`, whose only reader it is.

        If `node` is a view, the fused kernel writes in the view's order.
        """
        if not may_fuse("epilogue"):
            return FusionDecision(False, FORBIDDEN, POLICY)
        reason = self._cannot_end_with(producer, node)
        if reason:
            return FusionDecision(False, reason)
        first, second = self.type_of(producer), self.type_of(node)
        if TABLE_3[first, second].verdict is FusionVerdict.NEVER:
            return _never(first, second)
        action = TABLE_5[quadrant(producer.kernel), quadrant(node.kernel)]
        if action not in _TAKES_EPILOGUE:
            return FusionDecision(False, f"'{action.value}' (SmartMem Table 5)", "SmartMem Table 5")
        trial = FusionTrial(self.graph, [node], producer, inline_output=False)
        # A reduction that is read through several maps becomes several sums, which few schedule rules accept. Through
        # a map with divisions, the rules may no longer recognise its rows and columns.
        maps = node.kernel.last.maps(node.kernel.inputs[position(node, producer.var)])
        several, divides = len(maps) > 1, any(map(division_count, maps[0]))
        if divides and not several and self._is_lost(producer.kernel, trial):
            return FusionDecision(
                False, f"no schedule would see the product of {producer.var.name} any more", SCHEDULES
            )
        unpacked = UNPACKED_CYCLES * _weights(producer) if several else 0.0
        return self._decide(first, [second], trial, "each element is read once", several, unpacked)

    def _is_lost(self, kernel: Kernel, trial: FusionTrial) -> bool:
        return self.is_product is not None and self.is_product(kernel) and not all(map(self.is_product, trial.kernels))

    def _cannot_end_with(self, producer: Node, node: Node) -> str:
        if producer.kernel is None:
            return f"{producer.var.name} has no functional form: {producer.reason}"
        if self.graph.is_output(producer.var) or self.graph.readers(producer.var) != [node]:
            return f"{producer.var.name} is needed elsewhere too"
        if _calls(producer) + _calls(node) > MOST_CALLS:
            return f"{producer.var.name} calls enough functions per element already"
        buffer = node.kernel.inputs[position(node, producer.var)]
        stage, last = node.kernel.last, producer.kernel.last
        if node.kernel.readers(buffer) != [stage] or not (last.is_pointwise or can_reindex(last)):
            return f"{producer.var.name} is read by a stage before the last"
        if not reads_once(stage, buffer):
            return f"elements of {producer.var.name} are read more than once"
        return ""

    def inline(self, node: Node, readers: list[Node], once: bool = False) -> FusionDecision:
        """Decide whether the pointwise `node` is computed inside each of its `readers`.

        Parameters
        ----------
        once : bool
            Whether to fuse only if no element is evaluated more than once.
        """
        # A changed node has a different kernel, so the key stays valid.
        key = node, node.kernel, once, tuple((reader, reader.kernel) for reader in readers)
        if key not in self._asked:
            self._asked[key] = self._inline(node, readers, once)
        return self._asked[key]

    def _inline(self, node: Node, readers: list[Node], once: bool) -> FusionDecision:
        if self.graph.is_output(node.var):
            return FusionDecision(False, "it is a result of the function")
        if not readers:
            return FusionDecision(False, "nothing reads it")
        if not may_fuse("prologue" if once else "copies"):
            return FusionDecision(False, FORBIDDEN, POLICY)
        if sum(map(stage_divisions, node.kernel.stages)) > MOST_DIVISIONS:
            return FusionDecision(False, "its indices are too long to be worked out more than once")
        for reader in readers:
            decision = self._refuse_reader(node, reader, len(readers), once)
            if decision is not None:
                return decision
        if len(readers) > 1 and sum(len(stage.loads) for stage in node.kernel.stages) > MOST_LOADS:
            return FusionDecision(False, f"each reader would read more than {MOST_LOADS} operands for it once more")
        if len(readers) > 1 and not _moves_fewer_bytes(node, len(readers)):
            return FusionDecision(
                False, f"reading its operands in {len(readers)} kernels moves more bytes than storing it"
            )
        trial = FusionTrial(self.graph, readers, node, inline_output=True)
        repeats = any(repeats_in_windows(node, reader) for reader in readers)
        seconds = [self.type_of(reader) for reader in readers]
        return self._decide(self.type_of(node), seconds, trial, "computed where it is read", repeats)

    def _refuse_reader(self, node: Node, reader: Node, readers: int, once: bool) -> FusionDecision | None:
        name = reader.var.name
        if reader.kernel is not None and too_wide(reader, node):
            return FusionDecision(False, f"{name} would read more than {MOST_INPUTS} tensors")
        if reader.kernel is None:
            return FusionDecision(False, f"{name} has no functional form: {reader.reason}")
        if _calls(node) and _calls(reader) + _calls(node) > MOST_CALLS:
            return FusionDecision(False, f"{name} calls enough functions per element already")
        buffer, last = reader.kernel.inputs[position(reader, node.var)], node.kernel.last
        reading = reader.kernel.readers(buffer)
        if any(nests_too_deep(last, stage) for stage in reading):
            return FusionDecision(False, f"{name} would read at places that are read, and those again, too often")
        # LLVM refuses the vectors that TVM emits for booleans inside a kernel.
        if str(node.kernel.outputs[0].dtype) == "bool" and not may_inline(last, reading, buffer):
            return FusionDecision(False, f"{name} reads its truth values too often")
        first, second = self.type_of(node), self.type_of(reader)
        if TABLE_3[first, second].verdict is FusionVerdict.NEVER and movement(node.kernel) is None:
            return _never(first, second)
        work = sum(map(stage_cost, node.kernel.stages))
        again = readers * evaluations(reader, node.var, not once) / math.prod(shape_of(node.kernel.outputs[0]))
        if again > MOST_REPEATED and (once or work > CHEAP_OPERATIONS):
            return FusionDecision(False, f"{name} would evaluate its {work} operations {again:g} times")
        return None

    def _decide(
        self,
        first: MappingType,
        seconds: list[MappingType],
        trial: FusionTrial,
        why: str,
        priced: bool,
        more: float = 0.0,
    ) -> FusionDecision:
        """Decide on a pair without objections: by its price if `priced`, then by `_allowed`.

        `more` are cycles of the fused kernel that its price does not include.
        """
        verdict = judge(self.prices, trial.kernels, trial.apart, more) if priced else NO_PRICE
        if verdict.refuses:
            return FusionDecision(False, PRICIER, verdict=verdict)
        return replace(self._allowed(first, seconds, trial, why), verdict=verdict)

    def _allowed(self, first: MappingType, seconds: list[MappingType], trial: FusionTrial, why: str) -> FusionDecision:
        """Check the constraints, then the colour of the pair's cell in Table 3."""
        reason = trial.exceeds()
        if reason:
            return FusionDecision(False, reason)
        pairs = " and ".join(dict.fromkeys(f"{first.value} then {second.value}" for second in seconds))
        if all(TABLE_3[first, second].verdict is FusionVerdict.FUSE for second in seconds):
            return FusionDecision(True, f"{pairs}: {why}", "DNNFusion Table 3")
        measured = self.profiles.compare(trial.fused, trial.parts) if self.profiles is not None else None
        if measured is None:
            return FusionDecision(True, f"{pairs}: {why}")
        fused, apart = measured
        by = f"{MEASURED}: {fused * 1e6:.1f} us fused, {apart * 1e6:.1f} us separate"
        if fused <= apart:
            return FusionDecision(True, f"{pairs}: {why}", by)
        return FusionDecision(False, f"{pairs}: measured slower as one kernel", by)


def _never(first: MappingType, second: MappingType) -> FusionDecision:
    """Return the refusal of a red cell of Table 3."""
    return FusionDecision(
        False, f"{first.value} then {second.value} never pays (DNNFusion Table 3)", "DNNFusion Table 3"
    )


class FusionTrial:
    """A trial fusion of `producer` into each of `readers`; the fused kernels are computed on first use."""

    def __init__(self, graph: Graph, readers: list[Node], producer: Node, inline_output: bool):
        self._readers = readers
        self._merge: Callable[[Node], Kernel] = lambda reader: graph.merged(reader, producer, inline_output)
        self.apart = [node.kernel for node in (producer, *readers)]

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """One fused kernel per reader."""
        return tuple(map(self._merge, self._readers))

    @property
    def fused(self) -> tuple[tirx.PrimFunc, ...]:
        """The fused kernels as loop programs."""
        return tuple(emit(kernel) for kernel in self.kernels)

    @property
    def parts(self) -> tuple[tirx.PrimFunc, ...]:
        """The separate kernels as loop programs."""
        return tuple(map(emit, self.apart))

    def exceeds(self) -> str:
        """Return the limit on registers or local memory that a fused kernel would exceed; empty if none."""
        parts = self.apart
        # Sums over the parts come first, which need no merged kernel: most pairs are far from both limits.
        if sum(map(loads_per_element, parts)) > MOST_LOADS and self._grows(loads_per_element, parts, MOST_LOADS):
            return f"it would take more than {MOST_LOADS} operands per element"
        if any(map(local_bytes, parts)) and self._grows(local_bytes, parts, MOST_LOCAL_BYTES):
            return f"one element would need more than {MOST_LOCAL_BYTES} bytes of intermediate results"
        return ""

    def _grows(self, need: Callable[[Kernel], int], parts: list[Kernel], limit: int) -> bool:
        """Whether a fused kernel needs more than the limit and more than any part did."""
        return max(map(need, self.kernels)) > max(limit, *map(need, parts))


def loads_per_element(kernel: Kernel) -> int:
    """Return the most distinct elements that a stage without reduction loads for one output element."""
    return max((len(_distinct(stage)) for stage in kernel.stages if not stage.reduction), default=0)


def _distinct(stage) -> list:
    buffers = dict.fromkeys(load.source for load in stage.loads)
    return [indices for buffer in buffers for indices in stage.maps(buffer)]


def local_bytes(kernel: Kernel) -> int:
    """Return the bytes of intermediate results that one output element of a kernel needs at once.

    A stage needs one element of an intermediate result or, along the axes that it aggregates, all elements.
    """
    total = 0
    for buffer in kernel.intermediates:
        along = 1
        for stage in kernel.readers(buffer):
            indices = [index for read in stage.maps(buffer) for index in read]
            used = {v for index in indices for v in variables(index) if v in stage.reduction}
            along = max(along, math.prod(stage.extents[v] for v in used))
        total += along * number_bytes(str(buffer.dtype)) if along > 1 else 0
    return total


def _weights(node: Node) -> int:
    """Return the number of elements of the constants that the reductions of a kernel read."""
    reductions = [stage for stage in node.kernel.stages if stage.reduction]
    return sum(
        math.prod(shape_of(buffer))
        for buffer, arg in zip(node.kernel.inputs, node.args, strict=True)
        if isinstance(arg, ir.Constant) and any(stage.maps(buffer) for stage in reductions)
    )


def _calls(node: Node) -> int:
    """Count the transcendental calls in the element-wise stages of a kernel."""
    return sum(stage_calls(stage) for stage in node.kernel.stages if stage.is_pointwise)


def _moves_fewer_bytes(node: Node, readers: int) -> bool:
    operands = sum(data_bytes(b) for b, a in zip(node.kernel.inputs, node.args, strict=True) if isinstance(a, ir.Var))
    result = data_bytes(node.kernel.outputs[0])
    return readers * operands <= operands + (1 + readers) * result + LAUNCH_BYTES


def work(node: Node) -> int:
    """Return the points of all iteration spaces of a kernel that reduces; 0 for any other."""
    return sum(math.prod(stage.extents.values()) for stage in node.kernel.stages) if reduces(node.kernel) else 0


def result_bytes(node: Node) -> int:
    """Return the size in bytes of a node's (intermediate) result, DNNFusion's IRS size."""
    return data_bytes(node.kernel.outputs[0])
