# SPDX-License-Identifier: Apache-2.0
"""TVM's dlight rules for GPUs, and rules of this package around them.

They are correct and robust, not fast: the last of TVM's rules takes nearly every kernel of loops, and gives each
element of a result a thread of its own.
"""

from __future__ import annotations

import contextlib

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ...errors import reason_of
from ...ir.kernel import Opaque, parse
from ...target import Limits, is_gpu
from ..core.reduction import combiner_of
from ..core.rule import Rule
from ..core.words import load_of
from .occupancy import require_limits
from .operand_views import NAMES, with_views

# Elements of a result from which on one thread per element keeps a large GPU busy: assumed (2026-11-21), not measured.
_MANY = 16384
# Terms of a sum up to which a thread block that shares it would lose more time in barriers than it gains: assumed
# (2026-11-21), not measured.
_SHORT = 64
# TVM's rules choose thread blocks by the kind of the target, so the schedule is lowered this far to check its limits: a
# buffer shrinks to its used part only when it is lowered.
_COMPACT = tvm.transform.Sequential(
    [
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


def _compact(schedule: s_tir.Schedule) -> tirx.PrimFunc:
    try:
        return _COMPACT(schedule.mod)["main"]
    except Exception as error:  # for kernels of dynamic shape, TVM's rules make schedules that its lowering refuses
        raise ScheduleError(f"TVM cannot lower this schedule: {reason_of(error)}") from error


class TvmRule(Rule):
    """One of TVM's rules for GPUs, asked like one of ours.

    Parameters
    ----------
    rule : tvm.s_tir.dlight.ScheduleRule
        An exception that it raises for an unexpected kernel becomes a ScheduleError.
    """

    def __init__(self, rule: dlight.ScheduleRule):
        self.rule = rule

    @property
    def name(self) -> str:
        """TVM's name of the rule; the own name of a subclass."""
        return f"dlight.{type(self.rule).__name__}" if type(self) is TvmRule else super().name

    @property
    def family(self) -> str:
        """TVM's description of the rule; the own description of a subclass."""
        documented = (type(self.rule).__doc__ or "").strip().partition("\n")[0]
        return documented if type(self) is TvmRule else super().family

    @property
    def catch_all(self) -> bool:
        """Whether the rule takes any kernel, or any reduction."""
        return isinstance(self.rule, (dlight.gpu.Fallback, dlight.gpu.GeneralReduction))

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or return None if the target is no GPU or the rule does not take it."""
        if not is_gpu(target):
            return None
        try:
            with target:
                found = self.rule.apply(func, target, False)
        except Exception as error:  # its assertions have no type of their own, and most have no message
            raise ScheduleError(f"{type(self.rule).__name__}: {error or type(error).__name__}") from error
        schedule = found[0] if isinstance(found, list) else found
        if schedule is not None:
            require_limits(_compact(schedule), Limits.of(target))
        return schedule


class Tiled(TvmRule):
    """A matmul in tiles, each by a group of threads.

    TVM's rule takes operands that are read at plain iterators; here they may be read through any index map. Where a
    tile ends behind the depth, TVM's rule puts zeros in place of the tensors, which a factor such as `a[i, k] - 15`
    does not multiply to zero: such factors are operands of their own (docs/tvm-issues.md).
    """

    def __init__(self):
        super().__init__(dlight.gpu.Matmul())

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel is no matmul."""
        if not is_gpu(target):
            return None
        with contextlib.suppress(ScheduleError):
            plain = super().apply(func, target) if _multiplies_loads(func) else None
            if plain is not None:
                return plain
        viewed = with_views(func)
        found = super().apply(viewed, target) if viewed is not None else None
        return None if found is None or _stores_a_view(found) else found


def _multiplies_loads(func: tirx.PrimFunc) -> bool:
    """Whether each sum is one of products of two loads, or of casts of loads."""
    try:
        found = [combiner_of(stage) for stage in parse(func).stages if stage.reduction]
    except Opaque:
        return False
    terms = [each[1] for each in found if each is not None]
    sides = [side for term in terms if isinstance(term, tirx.Mul) for side in (term.a, term.b)]
    return len(sides) == 2 * len(terms) and all(load_of(side) is not None for side in sides)


def _stores_a_view(schedule: s_tir.Schedule) -> bool:
    """Whether TVM's rule stored a view instead of folding it into its reader."""
    root = schedule.mod["main"].body.block
    return any(buffer.name in NAMES for buffer in root.alloc_buffers)


class OneThreadEach(Rule):
    """A kernel with one reduction, whose elements each get a thread: where they are many, or the reduction is short.

    TVM's rule for reductions makes 256 threads share each element, even one of 32 terms, and a depthwise convolution
    then spends its time in barriers. TVM's last rule writes the unfinished sum to memory after each term, and schedules
    the epilogue as a kernel of its own.
    """

    catch_all = True

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel is of another kind."""
        if not is_gpu(target) or not _is_wide(func):
            return None
        sch = s_tir.Schedule(func)
        blocks = try_inline(sch, normalize_prim_func(sch))
        reduction = blocks[0].block_rv
        results = len(sch.get(reduction).writes)  # an argmax has two
        if len(blocks) > 2 or not blocks[0].is_reduction() or (len(blocks) == 1 and results > 1):
            return None
        writer = blocks[1].block_rv if len(blocks) == 2 else sch.cache_write(reduction, 0, "local")
        each = sch.fuse(*sch.get_loops(writer))
        group, thread = sch.split(each, [None, Limits.of(target).work_group])
        sch.bind(group, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        sch.compute_at(reduction, thread, preserve_unit_loops=True)
        for result in range(results):
            sch.set_scope(reduction, result, "local")
        kinds = blocks[0].dom_kind()
        inner = dict(zip(sch.get_loops(reduction)[2:], kinds, strict=True))
        terms = [loop for loop, kind in inner.items() if kind == "R"]
        sch.reorder(*[loop for loop in inner if loop not in terms], *terms)
        # TVM may not recognise the indices that it has simplified itself; then the sum is initialised inside its loop.
        with contextlib.suppress(ScheduleError):
            if terms:  # a sum of one term has no loop left
                sch.decompose_reduction(reduction, terms[0])
        return sch


class Shared(TvmRule):
    """A reduction whose elements are each computed by a group of threads, and what follows it."""

    def __init__(self):
        super().__init__(dlight.gpu.GeneralReduction())

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is no GPU or the kernel is of another kind."""
        return super().apply(_with_epilogue(func), target) if is_gpu(target) else None


def _with_epilogue(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func`; a lone reduction gets a copy of its result as an epilogue, which TVM's rule requires."""
    sch = s_tir.Schedule(func)
    blocks = normalize_prim_func(sch)
    if blocks is None or len(blocks) != 1 or not blocks[0].is_reduction():
        return func
    for result in range(len(sch.get(blocks[0].block_rv).writes)):
        sch.cache_write(blocks[0].block_rv, result, "global")
    return sch.mod["main"]


def _is_wide(func: tirx.PrimFunc) -> bool:
    try:
        reducing = [stage for stage in parse(func).stages if stage.reduction]
    except Opaque:
        return False
    if len(reducing) != 1:
        return False
    (stage,) = reducing
    points = terms = 1
    for var, extent in stage.extents.items():
        if any(var.same_as(each) for each in stage.reduction):
            terms *= extent
        else:
            points *= extent
    return points >= _MANY or terms <= _SHORT
