# SPDX-License-Identifier: Apache-2.0
"""Decisions as a trace of MetaSchedule's, so that its databases store them and its passes apply them.

Each value is one ``sample_categorical`` that annotates the root block of the unscheduled kernel::

    v1 = sch.sample_categorical(candidates=[1, 2, 4], probs=[...], decision=2)
    sch.annotate(root, "smartmem.decisions.matmul.height", v1)

A replay of the trace gives an unscheduled kernel with decisions as annotations; `with_decisions_taken` turns them into
the attribute that the rules read. Each value has its own annotation: a database cannot store a map of sampled values.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import Schedule, Trace

from ..schedule.core.decisions import DECISIONS
from .genetic import Genome, Space, Value

_PREFIX = f"{DECISIONS}."


def schedule_of(mod: IRModule, genome: Mapping[str, Value], space: Space) -> Schedule:
    """Return a traced schedule of a kernel with its decisions.

    Parameters
    ----------
    mod : tvm.IRModule
        The unscheduled kernel, named ``main``.
    genome : mapping
        A genome of `space`.
    """
    sch = Schedule(mod)
    root = sch.get_sblock("root", "main")
    for gene in space.genes:
        options = [int(option) for option in gene.options]
        chance = [1 / len(options)] * len(options)
        value = sch.sample_categorical(options, chance, decision=options.index(int(genome[gene.name])))
        sch.annotate(root, _PREFIX + gene.name, value)
    return sch


def genome_of(trace: Trace) -> Genome | None:
    """Return the decisions in a trace; None if it has none."""
    sampled, values = {}, {}
    for instruction in trace.insts:
        if instruction.kind.name == "SampleCategorical":
            candidates = instruction.attrs[0]
            sampled[instruction.outputs[0]] = int(candidates[int(trace.decisions[instruction])])
        elif instruction.kind.name == "Annotate" and str(instruction.attrs[0]).startswith(_PREFIX):
            name = str(instruction.attrs[0]).removeprefix(_PREFIX)
            values[name] = sampled[instruction.inputs[1]]
    return Genome(values) if values else None


def with_decisions_taken(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move decisions from annotations of the root block to the attribute; the function is then unscheduled again."""
    realize = func.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return func
    notes = {str(name): value for name, value in realize.block.annotations.items()}
    decisions = {name.removeprefix(_PREFIX): int(v) for name, v in notes.items() if name.startswith(_PREFIX)}
    if not decisions:
        return func
    root = realize.block
    kept = {name: value for name, value in notes.items() if not name.startswith(_PREFIX)}
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        kept,
    )
    plain = func.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, block))
    return plain.without_attr("tirx.is_scheduled").with_attr(DECISIONS, decisions)
