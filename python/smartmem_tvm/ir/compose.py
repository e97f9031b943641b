# SPDX-License-Identifier: Apache-2.0
"""Compose kernels: substitute a producer into its consumer.

One mechanism serves layout elimination and fusion. A pointwise producer is a value per index, so a consumer's load
``t[f(i)]`` becomes that value at ``f(i)``: the consumer *reads through the map*. A reduction cannot be substituted. It
is put in front of the consumer and *re-indexed*: if the consumer reads it once per element through the map ``g``, the
reduction runs over the consumer's own index space and computes element ``g(o)`` where the consumer needs it. This has
the effect of "the producer writes through the inverse map", without inverting anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import tvm_ffi
from tvm import ir, tirx

from .._tvm import mapped
from ..tables.fusion_policy import MOST_COPIED_LOADS, MOST_NESTED, MOST_REPEATED
from .check_maps import check_rewritten
from .index_map import LEAVES, is_identity, variables, visits_once
from .kernel import Kernel, Opaque, Stage, shape_of, substitute
from .strength_reduction import Simplifier
from .walk import loads


def fresh(kernel: Kernel) -> Kernel:
    """Return a copy with its own buffers and iterators, so that two uses of one PrimFunc can be merged."""
    buffers = [*kernel.inputs, *kernel.outputs, *kernel.intermediates]
    mapping: dict = {b: tirx.decl_buffer(b.shape, b.dtype, b.name, scope=b.scope()) for b in buffers}
    stages = []
    for stage in kernel.stages:
        iters = [tirx.IterVar(it.dom, tirx.Var(it.var.name, it.var.ty), it.iter_type) for it in stage.iters]
        inner = {**mapping, **{old.var: new.var for old, new in zip(stage.iters, iters, strict=True)}}
        stages.append(_rebuilt(stage, tuple(iters), lambda node, inner=inner: substitute(node, inner)))
    return Kernel(
        tuple(mapping[b] for b in kernel.inputs),
        tuple(mapping[b] for b in kernel.outputs),
        tuple(stages),
    )


def _rebuilt(stage: Stage, iters: tuple, rewrite) -> Stage:
    """Return the stage with rewritten statements, or the same object if nothing changes, so that caches stay valid."""
    init, body = rewrite(stage.init) if stage.init is not None else None, rewrite(stage.body)
    if iters is stage.iters and body.same_as(stage.body) and (init is None or init.same_as(stage.init)):
        return stage
    return Stage(stage.name, iters, body, init, stage.annotations)


def replace_loads(stage: Stage, buffer, value_at) -> Stage:
    """Replace every load ``buffer[indices]`` of a stage by ``value_at(indices)``."""

    def rewrite(node):
        return mapped(
            node, (ir.TensorLoad, lambda load: value_at(load.indices) if load.source.same_as(buffer) else load)
        )

    return _rebuilt(stage, stage.iters, rewrite)


MayFold = Callable[[Stage, list[Stage]], bool]
"""(stage, readers) -> whether a pointwise stage may be folded into all of its readers."""


def fold(kernel: Kernel, may_fold: MayFold, into: Callable[[Stage, Stage], Stage] | None = None) -> Kernel:
    """Fold every pointwise stage that may be folded into its readers; the kernel computes the same.

    Parameters
    ----------
    into : callable
        ``(reader, stage) -> reader`` without the buffer between the two: by default `substituted`.
    """
    stages, position = list(kernel.stages), 0
    while position < len(stages):
        stage = stages[position]
        readers = [s for s in stages if s.reads(stage.outputs[0])]
        inner = stage.is_pointwise and not any(stage.outputs[0].same_as(o) for o in kernel.outputs)
        if inner and readers and may_fold(stage, readers):
            stages = [(into or substituted)(s, stage) if s in readers else s for s in stages if s is not stage]
        else:
            position += 1
    return replace(kernel, stages=tuple(stages))


def inline(consumer: Stage, producer: Stage) -> Stage:
    """Put the value of a pointwise producer into its consumer: no buffer remains between the two stages."""
    return simplified(substituted(consumer, producer))


def substituted(consumer: Stage, producer: Stage) -> Stage:
    """Do as `inline`, but leave the indices unsimplified."""
    buffer, value, vars_ = producer.outputs[0], producer.body.value, producer.spatial

    def value_at(indices):
        # A gathered index may have fewer bits than the iterator that it replaces.
        fitting = [
            i if i.ty.dtype == v.ty.dtype else tirx.Cast(v.ty.dtype, i) for v, i in zip(vars_, indices, strict=True)
        ]
        return substitute(value, dict(zip(vars_, fitting, strict=True)))

    return replace_loads(consumer, buffer, value_at)


def simplified(stage: Stage) -> Stage:
    """Strength-reduce every index of a stage."""
    simplifier = Simplifier(stage.extents)
    return _rebuilt(stage, stage.iters, simplifier.body)


def simplify(kernel: Kernel, label: str = "") -> Kernel:
    """Strength-reduce every index of a kernel; `label` names the kernel in errors of the check of index maps."""
    simple = replace(kernel, stages=tuple(simplified(s) for s in kernel.stages))
    check_rewritten(kernel, simple, label)
    return simple


def reindex(stage: Stage, buffer, indices, consumer: Stage) -> tuple[Stage, Stage]:
    """Run a reduction over its consumer's index space.

    Parameters
    ----------
    stage : Stage
        Reduction that writes `buffer` at its spatial iterators.
    indices : sequence of Expr
        A map ``g`` through which `consumer` reads `buffer`, over the consumer's spatial iterators.

    Returns
    -------
    (Stage, Stage)
        The re-indexed reduction, over those iterators of the consumer that ``g`` uses, and the consumer, which reads
        it at these iterators in place of `buffer` through ``g``.
    """
    used = {var for index in indices for var in variables(index)}
    spatial = [it for it in consumer.iters if it.var in used or int(it.dom.extent) == 1]
    fresh_vars = {it.var: tirx.Var(it.var.name, it.var.ty) for it in spatial}
    iters = [tirx.IterVar(it.dom, fresh_vars[it.var], it.iter_type) for it in spatial]
    iters += [it for it in stage.iters if it.var in stage.reduction]
    position = [fresh_vars[it.var] for it in spatial]
    local = tirx.decl_buffer([it.dom.extent for it in spatial], buffer.dtype, buffer.name)
    mapped = [substitute(i, fresh_vars) for i in indices]

    def rewrite(node):
        node = substitute(node, dict(zip(stage.spatial, mapped, strict=True)))
        node = tvm_ffi.structural_map(
            node, (ir.TensorLoad, lambda ld: local[tuple(position)] if ld.source.same_as(buffer) else ld)
        )
        return tvm_ffi.structural_map(node, (tirx.BufferStore, lambda st: tirx.BufferStore(local, st.value, position)))

    def value_at(read):
        same = tvm_ffi.structural_equal(list(read), list(indices))
        return local[tuple(it.var for it in spatial)] if same else buffer[tuple(read)]

    return simplified(_rebuilt(stage, tuple(iters), rewrite)), replace_loads(consumer, buffer, value_at)


def merge(consumer: Kernel, buffer, producer: Kernel, inline_output: bool) -> Kernel:
    """Put `producer` inside `consumer`, which reads its output as input `buffer`.

    Parameters
    ----------
    inline_output : bool
        Whether to substitute the producer's last (pointwise) stage into every reader, reductions included, unless
        that would copy a long expression many times. Otherwise the stage is kept, and `tidy` decides.
    """
    out = producer.outputs[0]
    stages = [
        replace_loads(s, buffer, lambda indices: out[tuple(indices)]) if s.reads(buffer) else s for s in consumer.stages
    ]
    kept = list(producer.stages)
    if inline_output and may_inline(kept[-1], stages):
        last = kept.pop()
        stages = [inline(s, last) if s.reads(out) else s for s in stages]
    inputs = [b for b in consumer.inputs if not b.same_as(buffer)]
    return tidy(Kernel((*inputs, *producer.inputs), consumer.outputs, (*kept, *stages)))


def may_inline(stage: Stage, readers: Sequence[Stage], buffer=None) -> bool:
    """Whether the value of a pointwise stage may be copied to all of its reads.

    If not, the stage computes the value once, into a buffer. Expressions are trees here, so a chain of values that are
    read twice would double with each link.

    Parameters
    ----------
    buffer : optional
        The buffer through which `readers` read the value; by default the buffer that the stage writes.
    """
    buffer = stage.outputs[0] if buffer is None else buffer
    reading = [each for each in readers if each.reads(buffer)]
    copies = sum(load.source.same_as(buffer) for reader in reading for load in reader.loads)
    copied = copies * len(stage.loads) if copies > 1 else 0
    return copied <= MOST_COPIED_LOADS and not any(nests_too_deep(stage, each) for each in reading)


def merge_equal(kernel: Kernel, first, second) -> Kernel:
    """Replace reads of `second` by reads of `first`: inputs bound to the same tensor, or equal results."""
    stages = [
        simplified(replace_loads(s, second, lambda indices: first[tuple(indices)])) if s.reads(second) else s
        for s in kernel.stages
    ]
    inputs = tuple(b for b in kernel.inputs if not b.same_as(second))
    return replace(kernel, inputs=inputs, stages=tuple(stages))


def tidy(kernel: Kernel) -> Kernel:
    """Bring a kernel to its normal form.

    1. Copies are inlined, and so are pointwise stages that only pointwise stages read, unless that would copy a long
       expression several times.
    2. A reduction whose elements the last stage reads once, through one map or several, is re-indexed along each map.
    3. Equal reductions become one: a variance brings a second mean beside the mean that is subtracted.
    4. Stages and inputs without readers are dropped.
    """
    kernel = fold(kernel, _may_collapse, inline)
    kernel = _reindex_reductions(kernel)
    return _drop_dead(_merge_equal_reductions(kernel))


def _merge_equal_reductions(kernel: Kernel) -> Kernel:
    """Keep the first of several reductions that compute the same, and let all readers read it."""
    alike: dict[tuple, list[Stage]] = {}
    for stage in kernel.stages:
        if not (len(stage.outputs) == 1 and stage.reduction and stage.init is not None):
            continue
        own, others = stage.outputs[0], alike.setdefault(_form(stage), [])
        first = next((each.outputs[0] for each in others if _computes_the_same(each, stage)), None)
        if first is not None and not any(own.same_as(o) for o in kernel.outputs):
            return _merge_equal_reductions(_drop_dead(merge_equal(kernel, first, own)))
        others.append(stage)
    return kernel


def _form(reduction: Stage) -> tuple:
    """Return a key that equal reductions share and that is quick to compare: dtype, shape and iterators."""
    iters = tuple((int(it.iter_type), reduction.extents[it.var]) for it in reduction.iters)
    return str(reduction.outputs[0].dtype), shape_of(reduction.outputs[0]), iters


def _computes_the_same(first: Stage, second: Stage) -> bool:
    """Whether two reductions of the same `_form` differ only in the names of their iterators and results."""
    names = {b.var: a.var for a, b in zip(first.iters, second.iters, strict=True)}
    names |= {second.outputs[0]: first.outputs[0]}
    return tvm_ffi.structural_equal(
        [first.body, first.init], [substitute(each, names) for each in (second.body, second.init)]
    )


def _may_collapse(stage: Stage, readers: list[Stage]) -> bool:
    if any(len(r.outputs) > 1 for r in readers):
        return False
    if _is_copy(stage):  # the padding of a convolution without padding
        return True
    if any(r.reduction for r in readers):
        return False
    return may_inline(stage, readers)


def _is_copy(stage: Stage) -> bool:
    value = stage.body.value
    return isinstance(value, ir.TensorLoad) and is_identity(value.indices, stage.spatial, stage.extents)


def nests_too_deep(stage: Stage, reader: Stage) -> bool:
    """Whether loads would nest deeper than `MOST_NESTED` if the value of a stage were put into a reader."""
    deepest = nested_loads(stage)
    return deepest > 1 and deepest - 1 + nested_loads(reader) > MOST_NESTED


@lru_cache(maxsize=4096)  # fusion needs it for a node with each of its neighbours
def nested_loads(stage: Stage) -> int:
    """Return the depth of nested loads: a load whose index holds a load has depth 2."""
    depths: list[int] = []
    for load in loads(stage.body):  # the loads in its indices come right before it
        inside = sum(len(loads(index)) for index in load.indices if not isinstance(index, LEAVES))
        depths.append(1 + max(depths[len(depths) - inside :], default=0) if inside else 1)
    return max(depths, default=0)


def single_map(stage: Stage, buffer):
    """Return the only index map through which `stage` reads `buffer`, or None if there are several."""
    maps = stage.maps(buffer)
    return maps[0] if len(maps) == 1 else None


def _reindex_reductions(kernel: Kernel) -> Kernel:
    stages: list = []
    last = kernel.last
    if not last.is_pointwise:
        return kernel
    for stage in kernel.stages[:-1]:
        maps = _maps_to_follow(kernel, stage)
        stages += [] if maps else [stage]
        for indices in maps:
            moved, last = reindex(stage, stage.outputs[0], indices, last)
            stages.append(moved)
    return replace(kernel, stages=(*stages, last))


def _maps_to_follow(kernel: Kernel, stage: Stage) -> list[list]:
    """Return the maps through which the last stage reads reduction `stage`, if it should be re-indexed along them."""
    last, out = kernel.last, stage.outputs[0]
    if not stage.reduction or not can_reindex(stage) or kernel.readers(out) != [last]:
        return []
    maps = last.maps(out)
    same_space = shape_of(out) == tuple(last.extents[v] for v in last.spatial)
    if len(maps) == 1 and same_space and is_identity(maps[0], last.spatial, last.extents):
        return []
    return maps if reads_once(last, out) else []


def reads_once(stage: Stage, buffer) -> bool:
    """Whether computing each map through which `stage` reads `buffer` repeats hardly any of the buffer's elements.

    A single map must visit no element twice. Several maps, each over the iterators that it uses, must together visit
    at most `MOST_REPEATED` times the elements: the halves of a gated linear unit, or a sum and its divisor.
    """
    maps, shape = stage.maps(buffer), shape_of(buffer)
    spatial = {v: stage.extents[v] for v in stage.spatial}
    if len(maps) == 1:
        return visits_once(maps[0], spatial, shape)
    total = 0
    for indices in maps:
        used = {v: spatial[v] for index in indices for v in variables(index) if v in spatial}
        if not visits_once(indices, used, shape):
            return False
        total += math.prod(used.values())
    return total <= MOST_REPEATED * math.prod(shape)


def can_reindex(stage: Stage) -> bool:
    """Whether a reduction is one store at exactly its spatial iterators."""
    if not isinstance(stage.body, tirx.BufferStore) or not isinstance(stage.init, tirx.BufferStore):
        return False
    return all(is_identity(s.indices, stage.spatial, stage.extents) for s in (stage.body, stage.init))


def _drop_dead(kernel: Kernel) -> Kernel:
    stages: list = []
    for stage in reversed(kernel.stages):
        is_output = any(o.same_as(b) for o in kernel.outputs for b in stage.outputs)
        if is_output or any(s.reads(b) for s in stages for b in stage.outputs):
            stages.insert(0, stage)
    inputs = tuple(b for b in kernel.inputs if any(s.reads(b) for s in stages))
    return Kernel(inputs, kernel.outputs, tuple(stages))


def split_outputs(kernel: Kernel) -> list[Kernel]:
    """One kernel per output of a kernel whose outputs are computed by separate stages (split, unstack).

    Raises
    ------
    Opaque
        If one stage writes several outputs (argmax with its value, top-k).
    """
    return [output_of(kernel, number) for number in range(len(kernel.outputs))]


def output_of(kernel: Kernel, number: int) -> Kernel:
    """Return the kernel of one of the outputs, as in the result of `split_outputs`."""
    if any(len(stage.outputs) > 1 for stage in kernel.stages):
        raise Opaque("one block writes several outputs")
    return tidy(simplify(_drop_dead(Kernel(kernel.inputs, (kernel.outputs[number],), kernel.stages))))
