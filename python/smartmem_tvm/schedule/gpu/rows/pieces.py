# SPDX-License-Identifier: Apache-2.0
"""Rows too long for one group of threads, in pieces: one launch for each statistic, and one for what is left.

    mean = sum(x) / n;  var = sum((x - mean)^2) / n;  out = f(x, mean, var)
    ->
    a[p] = sum(x[p])                                       for each piece p of the row
    mean = sum(a) / n;  b[p] = sum((x[p] - mean)^2)
    mean = sum(a) / n;  var = sum(b) / n;  out[p] = f(x[p], mean, var)

Every group adds the partial results up for itself: a few hundred numbers from the cache cost less than one more launch,
which waits for all groups of the one before.
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

_TOGETHER = (8, 4, 2, 1)  # columns that a piece is a multiple of, if the row is


def in_pieces(program: RowProgram, groups: int) -> list[RowProgram] | None:
    """Programs that do the same one after the other, with a piece of a row as their row.

    What a program writes beside the outputs of `program`, later ones read.

    Parameters
    ----------
    groups : int
        Pieces of all rows together: so many keep the device busy.

    Returns
    -------
    list of RowProgram or None
        None if a value of a whole row leaves the kernel, if rows have columns of several numbers, or no divisor.
    """
    uneven = any(step.length != program.length for step in program.steps if step.is_statistic or step.is_vector)
    if uneven or any(program.writes(step) for step in program.steps if not step.is_vector):
        return None
    most = -(-groups // program.rows)
    ways = [_Cut(program, number).launches() for number in numbers_of_pieces(program.length, most)]
    return min(ways, key=lambda launches: sum(map(_jumps, launches)), default=None)


def numbers_of_pieces(length: int, most: int) -> list[int]:
    """Numbers of pieces of one length, the most first: up to `most`, and more than a quarter of it if there are such.

    The length of a piece is a multiple of the widest vector that the row's is one of.
    """
    units = length // next(unit for unit in _TOGETHER if length % unit == 0)
    able = [number for number in range(most, 1, -1) if units % number == 0]
    return [number for number in able if 4 * number > most] or able[:1]


def _jumps(program: RowProgram) -> int:
    """Accesses whose neighbours along a piece are not always as far apart: it ends in the middle of an image's row."""
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
        Buffer of a step -> the launch that computes it; a statistic's partial results, which the next one adds up.
    """

    def __init__(self, program: RowProgram, pieces: int):
        self.program, self.pieces = program, pieces
        self.row, self.column = fresh("row"), fresh("column")
        self.partial = {step.buffer: self._partial(step) for step in program.steps if step.is_statistic}
        self.levels: dict = {}
        for step in program.steps:
            self.levels[step.buffer] = max((self._known(load.source) for load in loads(step.value)), default=0)

    def launches(self) -> list[RowProgram]:
        """What all launches do, in their order."""
        return [self.launch(number) for number in range(max(self.levels.values()) + 1)]

    def _known(self, buffer) -> int:
        """The first launch that can read what is in a buffer."""
        return self.levels.get(buffer, 0) + (buffer in self.partial)

    def _partial(self, step: Step):
        shape = [index(self.program.rows * self.pieces)]
        return tirx.decl_buffer(shape, step.buffer.ty.dtype, f"{step.buffer.name}_partial", layout=None)

    def launch(self, number: int) -> RowProgram:
        """What launch `number` does."""
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
        """Steps that a launch takes, in order: those it is for, and what these read that is not in memory yet."""
        found: list[Step] = []
        read: set = set()
        for step in reversed(self.program.steps):
            if step in wanted or step.buffer in read - stored:
                found.insert(0, step)
                # A sum of partial results reads none of what the statistic was made from.
                if step in wanted or not step.is_statistic:
                    read |= {load.source for load in loads(step.value)}
        return found

    def _piece(self, step: Step) -> Step:
        """A step on the columns of one piece; of a statistic the partial result."""
        length = self.program.length // self.pieces if step.length > 1 else 1
        if step.is_statistic:
            place, shape, buffer = [self.row], self.partial[step.buffer].shape, self.partial[step.buffer]
        else:
            place, shape, buffer = step.indices, step.buffer.shape, step.buffer
        return self._moved(replace(step, buffer=buffer, length=length), place, shape)

    def _whole(self, step: Step) -> Step:
        """The sum of the partial results of a row."""
        first = tirx.floordiv(self.row, index(self.pieces)) * index(self.pieces)
        value = self.partial[step.buffer][first + self.column]
        step = replace(step, length=self.pieces)
        moved = self._moved(step, step.indices, step.buffer.shape)
        return replace(moved, value=self._simplifier(self.pieces).body(value))

    def _moved(self, step: Step, indices, shape) -> Step:
        """A step in the variables of the pieces."""
        length = index(self.program.length // self.pieces)
        row, piece = tirx.floordiv(self.row, index(self.pieces)), tirx.floormod(self.row, index(self.pieces))
        place = {self.program.row: row, self.program.column: piece * length + self.column}
        simplifier = self._simplifier(step.length)
        indices = simplifier.indices([substitute(each, place) for each in indices], shape)
        return replace(step, indices=tuple(indices), value=simplifier.body(substitute(step.value, place)))

    def _simplifier(self, length: int) -> Simplifier:
        return Simplifier({self.row: self.program.rows * self.pieces, self.column: length})
