# SPDX-License-Identifier: Apache-2.0
"""Chains: stages that run one after the other in one launch, some of them in loops over steps.

A chain becomes a function that no pass reads as a `Kernel`, and so splits again: its whole body is in an annotated loop
of one iteration. The schedule rule for chains reads it with `read_chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm import s_tir, tirx

from .index_map import variables
from .kernel import Stage, emit_stage, is_own, parse_nest, shape_of
from .walk import loads

CHAIN = "smartmem.chain"
"""Annotation of the loop of one iteration around a chain."""
STEPS = "smartmem.steps"
"""Annotation of a loop over steps, in which a step reads results of earlier steps."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Stages that are repeated in a loop over steps.

    Attributes
    ----------
    var : tirx.Var
        The number of the step, from `first` to ``last - 1``; the stages use it in indices that depend on the step.
    """

    var: tirx.Var
    first: int
    last: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Chain:
    """A sequence of `items` that reads `inputs` and writes `outputs`; all other buffers that it writes are internal."""

    inputs: tuple
    outputs: tuple
    items: tuple[Stage | Steps, ...]

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages; a repeated one occurs once."""
        return tuple(stages_of(self.items))

    @cached_property
    def own(self) -> tuple:
        """Buffers that are internal to the chain."""
        written = dict.fromkeys(buffer for stage in self.stages for buffer in stage.outputs)
        return tuple(b for b in written if not any(b.same_as(output) for output in self.outputs))


def stages_of(items: Iterable[Stage | Steps]) -> Iterator[Stage]:
    """Yield the stages of `items`; a stage in a loop occurs once."""
    for item in items:
        yield from item.stages if isinstance(item, Steps) else (item,)


def places(stage: Stage) -> list | None:
    """Return, for each dimension of a stage's result, the iterator that walks along it, or None.

    The whole result is None unless the stage writes exactly one element for each point, each at its own place.
    """
    if not isinstance(stage.body, tirx.BufferStore) or not isinstance(stage.init, tirx.BufferStore | None):
        return None
    spatial = {var for var in stage.spatial if stage.extents[var] > 1}
    found = []
    for position in stage.body.indices:
        used = [var for var in variables(position) if var in spatial]
        if used and not (len(used) == 1 and used[0].same_as(position)):
            return None
        found.append(used[0] if used else None)
    walked = [var for var in found if var is not None]
    return found if len(walked) == len(set(walked)) == len(spatial) else None


def reads(stage: Stage) -> list:
    """Return the loads of a stage without those of its accumulator; loads of its results of earlier steps count."""
    return [load for load in loads(stage.body) if not (stage.reduction and is_own(load, stage.body))]


def write_chain(chain: Chain) -> tirx.PrimFunc:
    """Return the unscheduled function of a chain."""
    body = tirx.SeqStmt([*(_written(item) for item in chain.items), tirx.Evaluate(tirx.const(0, "int32"))])
    around = tirx.For(
        tirx.Var("chain", "int64"), tirx.const(0, "int64"), tirx.const(1, "int64"), tirx.ForKind.SERIAL, body,
        annotations={CHAIN: 1},
    )  # fmt: skip
    root = s_tir.SBlock([], [], [], "root", around, alloc_buffers=list(chain.own))
    func = tirx.PrimFunc([*chain.inputs, *chain.outputs], s_tir.SBlockRealize([], True, root))
    return func.with_attrs({"tirx.noalias": True, "s_tir": True})


def _written(item: Stage | Steps) -> tirx.Stmt:
    if isinstance(item, Stage):
        return emit_stage(item, ())
    nests = [emit_stage(stage, ()) for stage in item.stages]
    body = nests[0] if len(nests) == 1 else tirx.SeqStmt(nests)
    kind, count = item.var.ty.dtype, item.last - item.first
    return tirx.For(
        item.var, tirx.const(item.first, kind), tirx.const(count, kind), tirx.ForKind.SERIAL, body,
        annotations={STEPS: 1},
    )  # fmt: skip


def read_chain(func: tirx.PrimFunc) -> Chain | None:
    """Return the chain of a function that `write_chain` made, None for any other function."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or not isinstance(root.block.body, tirx.For):
        return None
    around = root.block.body
    if CHAIN not in (around.annotations or {}):
        return None
    items = tuple(_read(each) for each in around.body.seq if not isinstance(each, tirx.Evaluate))
    written = {buffer for stage in stages_of(items) for buffer in stage.outputs}
    outputs = tuple(param for param in func.params if param in written)
    return Chain(tuple(param for param in func.params if param not in written), outputs, items)


def _read(item: tirx.Stmt) -> Stage | Steps:
    if not (isinstance(item, tirx.For) and STEPS in (item.annotations or {})):
        return parse_nest(item)
    nests = list(item.body.seq) if isinstance(item.body, tirx.SeqStmt) else [item.body]
    first = int(item.min)
    return Steps(item.loop_var, first, first + int(item.extent), tuple(parse_nest(nest) for nest in nests))


def elements(buffer) -> int:
    """Return the number of elements of a buffer."""
    return prod(shape_of(buffer))


def points(stage: Stage) -> int:
    """Return the number of elements that a stage writes."""
    return prod(stage.extents[var] for var in stage.spatial)


def terms(stage: Stage) -> int:
    """Return the number of terms of the reduction for each element; 1 without a reduction."""
    return prod(stage.extents[var] for var in stage.reduction)
