# SPDX-License-Identifier: Apache-2.0
"""What RNN, GRU and LSTM do with one sequence, step by step: the statements of a kernel's row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from smartmem_tvm.frontend.converters.activations import Function
from smartmem_tvm.frontend.converters.loops import loop, store, when

_PEEPHOLES = {"input": 0, "output": 1, "forget": 2}


@dataclass(frozen=True)
class Cell:
    """What the three layers differ in.

    Attributes
    ----------
    gates : int
        Blocks of rows in W and R.
    activations : tuple of str
        Of one direction, where the node does not say.
    step : callable
        Says the statements of one step of one row.
    initial : tuple of int
        Which inputs of the node are the states before the first step: the hidden state, and what else is handed on.
    """

    gates: int
    activations: tuple[str, ...]
    step: Callable[[Row], None]
    initial: tuple[int, ...] = (5,)


@dataclass(frozen=True)
class Layer:
    """A node's sizes and attributes."""

    cell: Cell
    steps: int
    hidden: int
    backward: tuple[bool, ...]  # for each direction
    activations: list[list[Function]]  # of each direction
    attrs: dict


@dataclass(frozen=True)
class Row:
    """One step of one sequence in one direction, as statements are said about it.

    Attributes
    ----------
    at : tuple
        Direction and sequence.
    place : ir.Expr
        The step whose input is taken.
    buffers : dict
        ``x`` (the input's part of the gates), ``r``; where the node has them ``rb`` (a bias that goes with `r`), ``p``
        (peepholes), ``state0`` ... (initial) and ``lengths``. Written are ``y``, a list of ``states``, and ``sums``,
        which is scratch.
    """

    layer: Layer
    at: tuple
    place: ir.Expr
    buffers: dict

    @property
    def units(self):
        """A loop over the hidden units."""
        return loop(self.layer.hidden)

    def state(self, number: int, j):
        """The value of a state for a unit."""
        return self.buffers["states"][number][(*self.at, j)]

    def set_state(self, number: int, j, value) -> None:
        """Write it."""
        store(self.buffers["states"][number], (*self.at, j), value)

    def sum(self, gate: int, j):
        """What goes into a gate of a unit."""
        return self.buffers["sums"][(*self.at, gate, j)]

    def set_sum(self, gate: int, j, value) -> None:
        """Write it."""
        store(self.buffers["sums"], (*self.at, gate, j), value)

    def input(self, gate: int, j):
        """The part of a gate that comes from the input."""
        direction, sequence = self.at
        return self.buffers["x"][(self.place, sequence, direction, gate, j)]

    def peephole(self, gate: str, j, state):
        """The part of an LSTM's gate that comes from the cell."""
        if "p" not in self.buffers:
            return tirx.const(0, state.ty.dtype)
        return self.buffers["p"][(self.at[0], _PEEPHOLES[gate], j)] * state

    def activate(self, number: int, value):
        """The activation of this number, after the clip."""
        clip = self.layer.attrs.get("clip", 0.0)
        if clip:
            bound = tirx.const(clip, value.ty.dtype)
            value = tirx.max(tirx.min(value, bound), -bound)
        forward, *backward = [each[number] for each in self.layer.activations]
        if not backward or backward[0] is forward:
            return forward(value)
        return tirx.Select(self.at[0] == 0, forward(value), backward[0](value))

    def multiply(self, gates: range, operand: Callable[[object], object]) -> None:
        """Add ``operand @ R`` to the sums of these gates."""
        with loop(self.layer.hidden) as k, loop(len(gates)) as g, loop(self.layer.hidden) as j:
            gate = g + gates.start
            weight = self.buffers["r"][(self.at[0], k, gate, j)]
            self.set_sum(gate, j, self.sum(gate, j) + operand(k) * weight)


def _rnn_step(row: Row) -> None:
    with row.units as j:
        row.set_sum(0, j, row.input(0, j))
    row.multiply(range(1), lambda k: row.state(0, k))
    with row.units as j:
        row.set_state(0, j, row.activate(0, row.sum(0, j)))


def _gru_step(row: Row) -> None:
    """Gates: update, reset, hidden; the reset goes before the last product, or after it and its bias."""
    after = bool(row.layer.attrs.get("linear_before_reset", 0))
    update, reset, hidden = range(3)
    with row.units as j:
        row.set_sum(update, j, row.input(update, j))
        row.set_sum(reset, j, row.input(reset, j))
        row.set_sum(hidden, j, row.buffers["rb"][(row.at[0], j)] if after else row.input(hidden, j))
    row.multiply(range(3 if after else 2), lambda k: row.state(0, k))
    with row.units as j:
        row.set_sum(reset, j, row.activate(0, row.sum(reset, j)))
        if after:
            row.set_sum(hidden, j, row.input(hidden, j) + row.sum(reset, j) * row.sum(hidden, j))
        else:
            row.set_sum(reset, j, row.sum(reset, j) * row.state(0, j))
    if not after:
        row.multiply(range(hidden, hidden + 1), lambda k: row.sum(reset, k))
    with row.units as j:
        row.set_sum(update, j, row.activate(0, row.sum(update, j)))
        row.set_sum(hidden, j, row.activate(1, row.sum(hidden, j)))
        kept = row.sum(update, j)
        row.set_state(0, j, (1 - kept) * row.sum(hidden, j) + kept * row.state(0, j))


def _lstm_step(row: Row) -> None:
    """Gates: input, output, forget, cell."""
    taken, out, forget, cell = range(4)
    with loop(4) as gate, row.units as j:
        row.set_sum(gate, j, row.input(gate, j))
    row.multiply(range(4), lambda k: row.state(0, k))
    with row.units as j:
        before = row.state(1, j)
        row.set_sum(taken, j, row.activate(0, row.sum(taken, j) + row.peephole("input", j, before)))
        if row.layer.attrs.get("input_forget", 0):
            row.set_sum(forget, j, 1 - row.sum(taken, j))
        else:
            row.set_sum(forget, j, row.activate(0, row.sum(forget, j) + row.peephole("forget", j, before)))
        row.set_sum(cell, j, row.activate(1, row.sum(cell, j)))
        row.set_state(1, j, row.sum(forget, j) * before + row.sum(taken, j) * row.sum(cell, j))
        gate = row.activate(0, row.sum(out, j) + row.peephole("output", j, row.state(1, j)))
        row.set_state(0, j, gate * row.activate(2, row.state(1, j)))


CELLS = {
    "RNN": Cell(1, ("Tanh",), _rnn_step),
    "GRU": Cell(3, ("Sigmoid", "Tanh"), _gru_step),
    "LSTM": Cell(4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, initial=(5, 6)),
}


def run(layer: Layer, at: tuple, buffers: dict) -> None:
    """All steps of one row."""
    steps = tirx.IntImm("int64", layer.steps)
    lengths = buffers.get("lengths")
    length = steps if lengths is None else tirx.min(tirx.Cast("int64", lengths[at[1]]), steps)
    with loop(layer.hidden) as j:
        for number, state in enumerate(buffers["states"]):
            first = buffers.get(f"state{number}")
            store(state, (*at, j), tirx.const(0, state.dtype) if first is None else first[(*at, j)])
    with loop(layer.steps) as step:
        with when(step < length):
            forward, turned = step, length - 1 - step
            if len(layer.backward) > 1:
                place = tirx.Select(at[0] == 0, forward, turned)
            else:
                place = turned if layer.backward[0] else forward
            row = Row(layer, at, place, buffers)
            layer.cell.step(row)
            with row.units as j:
                store(buffers["y"], (place, *at, j), row.state(0, j))
        if lengths is not None:
            with when(step >= length), loop(layer.hidden) as j:
                store(buffers["y"], (step, *at, j), tirx.const(0, buffers["y"].dtype))
