# SPDX-License-Identifier: Apache-2.0
"""Rows too long for one thread block, in pieces: one launch for each statistic, and one for the rest.

    mean = sum(x) / n;  var = sum((x - mean)^2) / n;  out = f(x, mean, var)
    ->
    a[p] = sum(x[p])                                       for each piece p of the row
    mean = sum(a) / n;  b[p] = sum((x[p] - mean)^2)
    mean = sum(a) / n;  var = sum(b) / n;  out[p] = f(x[p], mean, var)

Every thread block adds the partial results up for itself: reading a few hundred numbers from the cache costs less than
one more launch, which waits for all thread blocks of the one before.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from ....ir.kernel import substitute
from ....ir.strength_reduction import Simplifier
from ....ir.walk import loads
from ...core.expressions import Walk
from ...core.nest import fresh, index
from .program import RowProgram, Step

# Elements of a vector. By definition of CUDA: 16 bytes are eight float16; the columns of a piece are a multiple of the
# widest one that divides the row.
_TOGETHER = (8, 4, 2, 1)


def in_pieces(program: RowProgram, blocks: int) -> list[RowProgram] | None:
    """Return programs that together compute `program`, one launch after the other; their rows are pieces of its rows.

    Outputs of a program that are no outputs of `program` are read by later programs.

    Parameters
    ----------
    blocks : int
        Pieces of all rows together that keep the device busy.

    Returns
    -------
    list of RowProgram or None
        None if a value per row is an output of the kernel, if the steps differ in their number of columns, or if no
        number of pieces divides a row.
    """
    uneven = any(step.length != program.length for step in program.steps if step.is_statistic or step.is_vector)
    if uneven or any(program.writes(step) for step in program.steps if not step.is_vector):
        return None
    most = -(-blocks // program.rows)
    ways = [_Cut(program, number).launches() for number in numbers_of_pieces(program.length, most)]
    return min(ways, key=lambda launches: sum(map(_jumps, launches)), default=None)


def numbers_of_pieces(length: int, most: int) -> list[int]:
    """Return the numbers of equal pieces to try, largest first: from `most` down to more than a quarter of it.

    If there is none, the largest number below is the only one. The length of a piece is a multiple of the widest vector
    that divides the row.
    """
    units = length // next(unit for unit in _TOGETHER if length % unit == 0)
    able = [number for number in range(most, 1, -1) if units % number == 0]
    return [number for number in able if 4 * number > most] or able[:1]


def _jumps(program: RowProgram) -> int:
    """Return the number of accesses without a fixed stride along a piece: it may cross the end of an image's row."""
    jumps = 0
    for step in program.steps:
        walk = Walk({program.row: program.rows, program.column: step.length})
        accesses = [(load.source, load.indices) for load in loads(step.value)]
        accesses += [(step.buffer, step.indices)] if program.writes(step) else []
        jumps += sum(walk.stride(*access, program.column) is None for access in accesses)
    return jumps


class _Cut:
    """A program whose rows are cut into `pieces`.

    Attributes
    ----------
    levels : dict
        Buffer of a step -> number of the launch that computes it; for a statistic, its partial results, which the next
        launch adds up.
    """

    def __init__(self, program: RowProgram, pieces: int):
        self.program, self.pieces = program, pieces
        self.row, self.column = fresh("row"), fresh("column")
        self.partial = {step.buffer: self._partial(step) for step in program.steps if step.is_statistic}
        self.levels: dict = {}
        for step in program.steps:
            self.levels[step.buffer] = max((self._known(load.source) for load in loads(step.value)), default=0)

    def launches(self) -> list[RowProgram]:
        """Return the programs of all launches, in their order."""
        return [self.launch(number) for number in range(max(self.levels.values()) + 1)]

    def _known(self, buffer) -> int:
        """Return the number of the first launch that can read a buffer."""
        return self.levels.get(buffer, 0) + (buffer in self.partial)

    def _partial(self, step: Step):
        shape = [index(self.program.rows * self.pieces)]
        return tirx.decl_buffer(shape, step.buffer.ty.dtype, f"{step.buffer.name}_partial", layout=None)

    def launch(self, number: int) -> RowProgram:
        """Return the program of launch `number`."""
        own = [step for step in self.program.steps if self._leaves(step) and self.levels[step.buffer] == number]
        stored = {s.buffer for s in self.program.steps if self.program.writes(s) and self.levels[s.buffer] < number}
        steps = [
            self._whole(step) if step.is_statistic and step not in own else self._piece(step)
            for step in self._needed(own, stored)
        ]
        outputs = [self.partial[step.buffer] if step.is_statistic else step.buffer for step in own]
        return RowProgram(self.row, self.column, self.program.rows * self.pieces, tuple(steps), tuple(outputs))

    def _leaves(self, step: Step) -> bool:
        return step.is_statistic or self.program.writes(step)

    def _needed(self, wanted: list[Step], stored: set) -> list[Step]:
        """Return the steps of a launch, in order: those it is for, and the ones they read that are not stored yet."""
        found: list[Step] = []
        read: set = set()
        for step in reversed(self.program.steps):
            if step in wanted or step.buffer in read - stored:
                found.insert(0, step)
                # A sum of partial results reads none of the operands of the statistic.
                if step in wanted or not step.is_statistic:
                    read |= {load.source for load in loads(step.value)}
        return found

    def _piece(self, step: Step) -> Step:
        """Return a step on the columns of one piece; for a statistic, the partial result."""
        length = self.program.length // self.pieces if step.length > 1 else 1
        if step.is_statistic:
            place, shape, buffer = [self.row], self.partial[step.buffer].shape, self.partial[step.buffer]
        else:
            place, shape, buffer = step.indices, step.buffer.shape, step.buffer
        return self._moved(replace(step, buffer=buffer, length=length), place, shape)

    def _whole(self, step: Step) -> Step:
        """Return the step that combines the partial results of a row."""
        first = tirx.floordiv(self.row, index(self.pieces)) * index(self.pieces)
        value = self.partial[step.buffer][first + self.column]
        step = replace(step, length=self.pieces)
        moved = self._moved(step, step.indices, step.buffer.shape)
        return replace(moved, value=self._simplifier(self.pieces).body(value))

    def _moved(self, step: Step, indices, shape) -> Step:
        """Return a step in the variables of the pieces."""
        length = index(self.program.length // self.pieces)
        row, piece = tirx.floordiv(self.row, index(self.pieces)), tirx.floormod(self.row, index(self.pieces))
        place = {self.program.row: row, self.program.column: piece * length + self.column}
        simplifier = self._simplifier(step.length)
        indices = simplifier.indices([substitute(each, place) for each in indices], shape)
        return replace(step, indices=tuple(indices), value=simplifier.body(substitute(step.value, place)))

    def _simplifier(self, length: int) -> Simplifier:
        return Simplifier({self.row: self.program.rows * self.pieces, self.column: length})
