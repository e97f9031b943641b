# SPDX-License-Identifier: Apache-2.0
"""Spread the rows of a kernel over the threads of a GPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

import tvm_ffi
from tvm import DataType, tirx

from ....ir.kernel import substitute
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.expressions import Walk, contiguous_run, has_select, uses
from ...core.nest import fresh, index
from ..launch import GpuParams
from ..machine import ADDRESSES, FLOAT_BYTES, SECTOR, WARP
from ..thread_numbers import room_of_rows
from ..vectors import computed_types
from .program import RowProgram, Step

_SECTOR = SECTOR // FLOAT_BYTES  # elements of float32
_FEWEST_LANES = 4  # rows that a thread block reads side by side at least. Chosen: half a sector is still used
_MOST_LANES = 32  # rows that it reads side by side at most. Chosen: a warp then reads whole lines
# Registers for values of rows. Chosen: half of the 65,536 of a processor in NVIDIA's data sheets.
_GROUP_REGISTERS = 1 << 15
DIRECT = 32  # partial results that each thread of a row combines by itself. Chosen: as many as a warp has threads
# Turns of a loop that Mesa's compiler does not unroll: it stops at 832 instructions (nir_opt_loop_unroll), and a turn
# has 5 at least: read off its code (2026-11-29; it unrolled all of 160 turns of a product of one row).
_KEPT_LOOP = 192
_FEWEST_THREADS = 128  # of a phone's block that is made smaller for its registers. Chosen: two waves


@dataclass(frozen=True)
class RowPlan:
    """Threads of a thread block: `lanes` rows times `slices` of a row.

    Attributes
    ----------
    across : bool
        Neighbouring threads work on neighbouring rows, not on neighbouring columns.
    vector : int
        Columns that a thread takes at once.
    turned : bool
        Results are transposed through shared memory: reads are contiguous along rows, writes along columns, or the
        reverse.
    """

    lanes: int
    slices: int
    across: bool
    vector: int = 1
    turned: bool = False

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.lanes * self.slices

    def turns(self, length: int) -> int:
        """Return the iterations of a thread over the columns of a row of `length`."""
        return -(-length // (self.slices * self.vector))


def writes_by_columns(program: RowProgram) -> bool:
    """Whether the texels of every texture that is written lie along the columns; true if there is none."""
    written = [step for step in program.steps if program.writes(step) and is_texture(step.buffer)]
    return all(
        step.is_vector and uses(step.indices[-1], [program.column]) and not uses(step.indices[-1], [program.row])
        for step in written
    )


def plan_of(program: RowProgram, params: GpuParams) -> RowPlan:
    """Spread rows over threads: along the columns if those are contiguous in memory, else across the rows."""
    length, rows = program.length, program.rows
    params = _with_room_for_statistics(program, params)
    across = rows > 1 and not _writes_texels(program) and _goes_across(program)
    if across:
        lanes = _lanes_across(rows, length, params)
        slices = _slices_across(rows, length, lanes, params)
        lanes = _more_lanes(lanes, slices, rows, params)
    else:
        vector = _vector(program, length, params)
        slices = _slices_along(rows, length // vector, params)
        lanes = _lanes_along(rows, slices, params)
        together = _lanes_of_texels(program, params)
        if together > 1:
            # The same number of threads, now of several rows, whose texels are neighbours in memory.
            slices = max(1, slices * lanes // together)
            return RowPlan(together, slices, True, vector)
        if vector > 1:
            return RowPlan(lanes, slices, False, vector)
    return _turned(program, RowPlan(lanes, slices, across), params)


def _with_room_for_statistics(program: RowProgram, params: GpuParams) -> GpuParams:
    """Return the parameters with few enough threads for their partial results to fit in shared memory."""
    each = sum(2 * DataType(str(s.buffer.dtype)).itemsize for s in program.steps if s.is_statistic)
    limits = params.limits
    most = min(limits.work_group, max(1, limits.shared_bytes // each)) if each else limits.work_group
    return replace(params, limits=replace(limits, work_group=most), block_threads=min(params.block_threads, most))


def _goes_across(program: RowProgram) -> bool:
    """Whether more elements are contiguous along the rows than along the columns; true if none is along the columns."""
    made = [step.buffer for step in program.steps]
    found = {program.row: 0, program.column: 0}
    for step in program.steps:
        for load in loads(step.value):
            if any(load.source.same_as(b) for b in made) or not uses(load, [program.column]):
                continue
            for var in found:
                if _follows(program, step, load, var):
                    found[var] += prod(int(d) for d in load.source.shape)
    return found[program.row] > found[program.column] or not found[program.column]


def _follows(program: RowProgram, step: Step, access, var) -> bool:
    """Whether neighbouring values of `var` are mostly neighbours in memory."""
    extents = {program.row: program.rows, program.column: step.length}
    extent = extents[var]
    together = TEXEL if is_texture(access.source) else _SECTOR
    wanted = min(together, 1 << (extent.bit_length() - 1))
    other = {v: e for v, e in extents.items() if not v.same_as(var)}

    def at(place):
        return access.source, [substitute(i, {var: place}) for i in access.indices]

    return extent > 1 and contiguous_run(at, extent, other, wanted) == wanted


def _lanes_across(rows: int, length: int, params: GpuParams) -> int:
    lanes = _MOST_LANES
    while lanes > _FEWEST_LANES and -(-rows // lanes) < params.busy_blocks:
        lanes //= 2
    if -(-rows // lanes) < params.busy_blocks // 4 and length > _SECTOR:
        lanes = 1
    while lanes > params.limits.work_group:
        lanes //= 2
    return min(lanes, _power(rows))


def _slices_across(rows: int, length: int, lanes: int, params: GpuParams) -> int:
    wanted = _power(-(-params.busy_threads // rows))
    most = params.limits.work_group
    return max(1, min(wanted, most // lanes, 256 // lanes, _power(-(-length // params.values_each))))


def _more_lanes(lanes: int, slices: int, rows: int, params: GpuParams) -> int:
    """Return more rows for a thread block of few threads."""
    while lanes * slices < params.block_threads and -(-rows // (2 * lanes)) >= params.busy_blocks:
        lanes *= 2
    return lanes


def _lanes_of_texels(program: RowProgram, params: GpuParams) -> int:
    """Return the rows whose texels share a sector of memory, in most of the images that are accessed along the columns.

    1 if there are no images, or too few rows to take several at a time. Buffers do not suffer from this: the threads
    of a warp that are left for a row still read a whole line of it.
    """
    found: dict[int, int] = {}
    for step in program.steps:
        for access in _outside(program, step):
            if is_texture(access.source):
                lanes = _texels_side_by_side(program, access, step.length)
                found[lanes] = found.get(lanes, 0) + prod(int(d) for d in access.source.shape)
    lanes = max(found, key=found.get, default=1)
    return lanes if -(-program.rows // lanes) >= params.limits.processors else 1


def _texels_side_by_side(program: RowProgram, access, length: int) -> int:
    """Return the rows whose texels share a sector of memory; 1 if neighbouring rows are no neighbours in the image.

    Only the first two rows are compared: at the end of a row of the image the stride differs anyway.
    """
    lanes = SECTOR // (TEXEL * DataType(str(access.source.dtype)).itemsize)
    if program.rows < lanes:
        return 1
    walk = Walk({program.column: length})
    places = ([substitute(i, {program.row: index(at)}) for i in access.indices] for at in (0, 1))
    first, second = (walk.offset(access.source, place) for place in places)
    return lanes if walk.analyzer.can_prove_equal(second - first, TEXEL) else 1


def _slices_along(rows: int, units: int, params: GpuParams) -> int:
    most = params.limits.work_group
    slices = min(most, _power(-(-units // params.values_each)))
    while slices < min(units, 256, most) and rows * slices < params.busy_threads:
        slices *= 2
    while slices < most and -(-units // slices) > 4 * params.values_each:
        slices *= 2
    if slices > WARP:
        each = -(-units // slices)
        needed = -(-units // each)
        slices = -(-needed // WARP) * WARP
    return min(most, slices)


def _lanes_along(rows: int, slices: int, params: GpuParams) -> int:
    lanes = max(1, params.block_threads // slices)
    while lanes > 1 and -(-rows // lanes) < params.busy_blocks:
        lanes //= 2
    return min(lanes, _power(rows))


def _power(value: int) -> int:
    """Return the smallest power of two that is not below `value`."""
    return 1 << max(0, value - 1).bit_length()


def _vector(program: RowProgram, length: int, params: GpuParams) -> int:
    """Return the vector length along the columns: all steps access aligned vectors, and none selects by element."""
    if _writes_texels(program):
        return TEXEL
    limits, outside = params.limits, [access for step in program.steps for access in _outside(program, step)]
    computed = {str(step.buffer.dtype) for step in program.steps} | computed_types(*(s.value for s in program.steps))
    wide = limits.vector_of((str(access.source.dtype) for access in outside), computed)
    texels = any(is_texture(access.source) for access in outside)
    widths = (limits.vector,) if texels else (wide, limits.vector)
    return next((width for width in widths if width > 1 and _goes_in_vectors(program, width)), 1)


def _goes_in_vectors(program: RowProgram, width: int) -> bool:
    if any(step.length % width for step in program.steps if step.is_vector or step.is_statistic):
        return False
    return not any(
        has_select(step.value) or not all(_aligned(program, step, a, width) for a in _accesses(program, step))
        for step in program.steps
    )


def _accesses(program: RowProgram, step: Step) -> list:
    """Return the loads of a step that move along the columns, and its store."""
    accesses = [load for load in loads(step.value) if uses(load, [program.column])]
    return [*accesses, step.buffer[step.indices]] if program.writes(step) and step.is_vector else accesses


def _outside(program: RowProgram, step: Step) -> list:
    """Return those of `_accesses` that go to global memory."""
    made = [other.buffer for other in program.steps if not program.writes(other)]
    return [access for access in _accesses(program, step) if not any(access.source.same_as(b) for b in made)]


def _writes_texels(program: RowProgram) -> bool:
    return any(is_texture(output) for output in program.outputs)


def _aligned(program: RowProgram, step: Step, access, width: int) -> bool:
    """Whether each aligned vector of columns is one vector of memory, or one element of it."""
    number, within = fresh("number"), fresh("within")
    walk = Walk({program.row: program.rows, number: max(1, step.length // width), within: width})
    at = [substitute(i, {program.column: number * index(width) + within}) for i in access.indices]
    stride = walk.stride(access.source, at, within)
    if stride != 1:
        return stride == 0 and not is_texture(access.source)
    # The first element must be at a multiple of the width: in memory, or in its texel.
    first = [substitute(i, {within: index(0)}) for i in at]
    offset = first[-1] if is_texture(access.source) else walk.offset(access.source, first)
    return walk.analyzer.can_prove_equal(tirx.floormod(offset, index(width)), 0)


def _turned(program: RowProgram, plan: RowPlan, params: GpuParams) -> RowPlan:
    """Transpose results through shared memory if their layout needs it and the rows of a thread block fit there."""
    step = program.steps[-1]
    if not (step.is_vector and program.writes(step)) or program.rows == 1 or (plan.across and plan.lanes == 1):
        return plan
    target = step.buffer[step.indices]
    along, across = (_follows(program, step, target, var) for var in (program.column, program.row))
    if not (across and not along if not plan.across else along and not across):
        return plan
    lanes = plan.lanes
    if not plan.across:
        lanes = max(lanes, min(_SECTOR, params.limits.work_group // plan.slices, _power(program.rows)))
    partials = FLOAT_BYTES * (2 * params.limits.work_group + 64) * sum(s.is_statistic for s in program.steps)
    room = params.limits.shared_bytes - partials
    while lanes > 1 and lanes * (step.length | 1) * 4 > room:
        lanes //= 2
    if lanes < min(plan.lanes, _FEWEST_LANES) or lanes * (step.length | 1) * 4 > room:
        return plan
    spare = plan.lanes // lanes if plan.across and lanes < plan.lanes else 1
    slices = min(plan.slices * spare, _power(step.length)) if spare > 1 else plan.slices
    return RowPlan(lanes, slices, plan.across, 1, turned=True)


def fitting_plan(program: RowProgram, params: GpuParams) -> RowPlan | None:
    """Return the plan whose threads hold the vectors of their rows in registers; None if there is none.

    On a phone the threads of a block share its registers: half of the threads hold twice the elements of a row each, in
    twice the registers, and the numbers beside them only once. So blocks there become smaller until the vectors fit,
    and what the loads of all turns bring, or turns are so many that the compiler keeps a loop of them.
    """
    plans = [plan_of(program, params)]
    while params.limits.phone and plans[-1].threads > _FEWEST_THREADS:
        fewer = replace(params.limits, work_group=plans[-1].threads // 2)
        plans.append(plan_of(program, replace(params, limits=fewer)))
    able = [plan for plan in plans if fits(program, plan, params)]
    return next((plan for plan in able if _begins_within(program, plan, params)), next(iter(able), None))


def fits(program: RowProgram, plan: RowPlan, params: GpuParams) -> bool:
    """Whether the vectors of a row fit in the registers of its threads."""
    vectors = [s for s in program.steps if s.is_vector and program.read_later(s)]
    most = min(params.row_registers, params.limits.registers - ADDRESSES, _GROUP_REGISTERS // plan.threads)
    within = sum(plan.turns(s.length) * plan.vector for s in vectors) <= most
    room = row_room(program, plan, params)
    if not within or room is None or not vectors:
        return within
    # A vector on its way, and the place of another where only some threads have a last turn.
    uneven = any(step.length % (plan.slices * plan.vector) for step in vectors)
    return kept_numbers(program, plan) + (1 + uneven) * plan.vector <= room


def row_room(program: RowProgram, plan: RowPlan, params: GpuParams) -> int | None:
    """Return the numbers of four bytes that a thread holds beside its place and its sums; None for no bound.

    Threads that wait for each other are all there at once, and share the registers of a phone's core.
    """
    meets = plan.turned or any(step.is_statistic and not is_short(program, step, plan) for step in program.steps)
    return room_of_rows(params.limits, plan.threads if meets and plan.slices > 1 else 1)


def is_short(program: RowProgram, step: Step, plan: RowPlan) -> bool:
    """Whether a statistic has few columns, all in memory, and fewer than its row: partial results of a row.

    Each thread then combines them by itself.
    """
    made = [each.buffer for each in program.steps if each.is_vector]
    few = step.length <= min(DIRECT, program.length - 1)
    return few and plan.slices > 1 and not any(load.source in made for load in loads(step.value))


def _begins_within(program: RowProgram, plan: RowPlan, params: GpuParams) -> bool:
    """Whether registers hold what the loads of all turns of a thread bring, unless a loop of them stays one."""
    room = row_room(program, plan, params)
    kept = {step.buffer for step in program.steps if step.is_vector and program.read_later(step)}
    others = [step for step in program.steps if step.buffer not in kept]
    turns = [(plan.turns(step.length), begun_numbers(program, step, plan, kept)) for step in others]
    begun = max((count * numbers for count, numbers in turns if count < _KEPT_LOOP), default=0)
    return room is None or kept_numbers(program, plan) + begun <= room


def kept_numbers(program: RowProgram, plan: RowPlan) -> int:
    """Return the numbers of four bytes of the vectors that a thread keeps of its rows, where these are most.

    A vector takes the place of the one that it is made of, if no later step reads that.
    """

    def last(vector: Step) -> int:
        readers = (
            n for n, s in enumerate(program.steps) if any(x.source.same_as(vector.buffer) for x in loads(s.value))
        )
        return max(readers, default=-1)

    ends = {n: last(s) for n, s in enumerate(program.steps) if s.is_vector and program.read_later(s)}

    def live(at: int) -> int:
        vectors = [program.steps[n] for n, end in ends.items() if n <= at < end]
        return sum(numbers_of(plan.turns(s.length) * plan.vector, s.buffer) for s in vectors)

    return max(map(live, range(len(program.steps))))


def begun_numbers(program: RowProgram, step: Step, plan: RowPlan, kept: Collection) -> int:
    """Return the numbers of four bytes that the loads of a turn bring, of a step beside the vectors `kept`.

    A load from a texture brings a whole texel.
    """
    found: list = []
    for load in loads(step.value):
        new = uses(load, [program.column]) and load.source not in kept
        if new and not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return sum(numbers_of(max(plan.vector, TEXEL * is_texture(load.source)), load.source) for load in found)


def numbers_of(elements: int, buffer) -> int:
    """Return the numbers of four bytes that so many elements of a buffer take in registers."""
    return -(-elements * DataType(str(buffer.dtype)).itemsize // FLOAT_BYTES)
