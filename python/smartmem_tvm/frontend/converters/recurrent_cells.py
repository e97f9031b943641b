# SPDX-License-Identifier: Apache-2.0
"""The kernels of RNN, GRU and LSTM, step by step.

Within a step the hidden units, the sequences of a batch and the directions are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx

from smartmem_tvm.frontend.converters.activations import Function
from smartmem_tvm.frontend.converters.loops import loop, points, registers, store, unrolled, when

_PEEPHOLES = {"input": 0, "output": 1, "forget": 2}


# Hidden units computed in one vector: the accumulators of four gates of them fit in the registers of any CPU.
LANES = 16


@dataclass(frozen=True)
class Cell:
    """The differences between the three layers.

    Attributes
    ----------
    gates : int
        Number of gates: blocks of rows in W and R.
    activations : tuple of str
        Default activations of one direction.
    phases : callable
        (attributes of the node) -> the phases of a step: each emits the statements of one hidden unit, and starts after
        the previous phase of all units.
    initial : tuple of int
        Positions of the node's inputs with the initial states: the hidden state, and the cell state of an LSTM.
    scratch : callable
        (`Layer`) -> name -> (shape, type) of the buffers that `before` writes.
    before : callable
        (`Layer`, step, `Unit.buffers`) emits the statements of a step that precede those of its units.
    multiply : callable
        (unit, gates, operand) emits the addition of ``operand @ R`` to the sums of these gates.
    """

    gates: int
    activations: tuple[str, ...]
    phases: Callable[[dict], tuple[Callable[[Unit], None], ...]]
    initial: tuple[int, ...] = (5,)
    scratch: Callable[[Layer], dict] = lambda layer: {}
    before: Callable[[Layer, ir.Expr, dict], None] = lambda layer, step, buffers: None
    multiply: Callable[[Unit, range, Callable], None] = lambda unit, gates, operand: _multiply(unit, gates, operand)


@dataclass(frozen=True)
class Layer:
    """A node's sizes and attributes.

    Attributes
    ----------
    hidden : int
        Number of hidden units.
    """

    cell: Cell
    steps: int
    batch: int
    hidden: int
    backward: tuple[bool, ...]  # for each direction
    activations: list[list[Function]]  # for each direction
    attrs: dict

    @property
    def blocks(self) -> int:
        """Return the number of vectors of units that hold the state; no unit reads the last one's padding."""
        return -(-self.hidden // LANES)

    @property
    def scratch(self) -> tuple[int, ...]:
        """Return the shape of the values passed between steps and between phases: `Unit.hidden` and `Unit.handed`."""
        return (3, len(self.backward), self.batch, self.blocks * LANES)


_HANDED = 2  # index in the scratch after the hidden states before and after a step


@dataclass(frozen=True)
class Unit:
    """One step of one hidden unit of a sequence in a direction; its methods read values and emit statements.

    Attributes
    ----------
    step, place : ir.Expr
        The number of previous steps, and the step whose input is read.
    direction, sequence, block, lane : ir.Expr
        The position of the unit.
    sums : buffer
        The accumulators of this unit's gates.
    buffers : dict
        Read: ``x`` (the input's part of the gates), ``r``, and if the node has them ``rb`` (the bias of the product
        with `r`), ``p`` (peepholes), ``state0`` ... (initial) and ``lengths``. Written: ``y``, a list of ``states``,
        and ``scratch``.
    """

    layer: Layer
    step: ir.Expr
    place: ir.Expr
    direction: ir.Expr
    sequence: ir.Expr
    block: ir.Expr
    lane: ir.Expr
    sums: object
    buffers: dict

    @property
    def at(self) -> tuple:
        """Return the indices of the unit in tensors of states."""
        return self.direction, self.sequence, self.block * LANES + self.lane

    def hidden(self, k=None):
        """Return the hidden state before this step, of this unit or of unit `k`."""
        return self._scratch(self.step % 2, k)

    def handed(self, k=None):
        """Return the value that an earlier phase of this step wrote, of this unit or of unit `k`."""
        return self._scratch(_HANDED, k)

    def _scratch(self, place, k):
        return self.buffers["scratch"][(place, *(self.at if k is None else (*self.at[:2], k)))]

    def set_hidden(self, value) -> None:
        """Write the hidden state, for the next step and as a result."""
        store(self.buffers["scratch"], ((self.step + 1) % 2, *self.at), value)
        store(self.buffers["states"][0], self.at, value)

    def hand_on(self, value) -> None:
        """Write this unit's value for the next phase, which reads those of all units."""
        store(self.buffers["scratch"], (_HANDED, *self.at), value)

    def cell(self):
        """Return the cell state of an LSTM's unit, which no other unit reads."""
        return self.buffers["states"][1][self.at]

    def set_cell(self, value) -> None:
        """Write the cell state."""
        store(self.buffers["states"][1], self.at, value)

    def sum(self, gate: int):
        """Return the accumulator of a gate."""
        return self.sums[gate]

    def set_sum(self, gate: int, value) -> None:
        """Write the accumulator of a gate."""
        store(self.sums, (gate,), value)

    def input(self, gate: int):
        """Return the input's part of a gate."""
        direction, sequence, unit = self.at
        return self.buffers["x"][(self.place, sequence, direction, gate, unit)]

    def peephole(self, gate: str, state):
        """Return the cell's part of an LSTM's gate."""
        if "p" not in self.buffers:
            return tirx.const(0, state.ty.dtype)
        return self.buffers["p"][(self.direction, _PEEPHOLES[gate], self.at[-1])] * state

    def activate(self, number: int, value):
        """Return activation `number` of a gate, after the clip."""
        clip = self.layer.attrs.get("clip", 0.0)
        if clip:
            bound = tirx.const(clip, value.ty.dtype)
            value = tirx.max(tirx.min(value, bound), -bound)
        return self.function(number, value)

    def function(self, number: int, value):
        """Return activation `number` of an unclipped value: ONNX Runtime clips gates, but not an LSTM's cell."""
        forward, *backward = [each[number] for each in self.layer.activations]
        if not backward or backward[0] is forward:
            return forward(value)
        return tirx.Select(self.direction == 0, forward(value), backward[0](value))

    def multiply(self, gates: range, operand: Callable[[object], object]) -> None:
        """Add ``operand @ R`` to the sums of these gates."""
        self.layer.cell.multiply(self, gates, operand)


def _multiply(unit: Unit, gates: range, operand: Callable[[object], object]) -> None:
    with loop(unit.layer.hidden) as k, unrolled(len(gates)) as g:
        gate = g + gates.start
        weight = unit.buffers["r"][(unit.direction, unit.block, k, gate, unit.lane)]
        unit.set_sum(gate, unit.sum(gate) + operand(k) * weight)


def _rnn(unit: Unit) -> None:
    unit.set_sum(0, unit.input(0))
    unit.multiply(range(1), unit.hidden)
    unit.set_hidden(unit.activate(0, unit.sum(0)))


# The gates of a GRU.
_UPDATE, _RESET, _HIDDEN = range(3)


def _gru_with_reset_after_product(unit: Unit) -> None:
    for gate in (_UPDATE, _RESET):
        unit.set_sum(gate, unit.input(gate))
    unit.set_sum(_HIDDEN, unit.buffers["rb"][(unit.direction, unit.at[-1])])
    unit.multiply(range(3), unit.hidden)
    unit.set_sum(_RESET, unit.activate(0, unit.sum(_RESET)))
    unit.set_sum(_HIDDEN, unit.input(_HIDDEN) + unit.sum(_RESET) * unit.sum(_HIDDEN))
    _gru_state(unit)


def _gru_reset(unit: Unit) -> None:
    unit.set_sum(_RESET, unit.input(_RESET))
    unit.multiply(range(_RESET, _RESET + 1), unit.hidden)
    unit.hand_on(unit.activate(0, unit.sum(_RESET)) * unit.hidden())


def _gru_with_reset_before_product(unit: Unit) -> None:
    for gate in (_UPDATE, _HIDDEN):
        unit.set_sum(gate, unit.input(gate))
    unit.multiply(range(_UPDATE, _UPDATE + 1), unit.hidden)
    unit.multiply(range(_HIDDEN, _HIDDEN + 1), unit.handed)
    _gru_state(unit)


def _gru_state(unit: Unit) -> None:
    unit.set_sum(_UPDATE, unit.activate(0, unit.sum(_UPDATE)))
    unit.set_sum(_HIDDEN, unit.activate(1, unit.sum(_HIDDEN)))
    kept = unit.sum(_UPDATE)
    unit.set_hidden((1 - kept) * unit.sum(_HIDDEN) + kept * unit.hidden())


def _lstm(unit: Unit) -> None:
    """Gates: input, output, forget, cell."""
    taken, out, forget, cell = range(4)
    for gate in range(4):
        unit.set_sum(gate, unit.input(gate))
    unit.multiply(range(4), unit.hidden)
    unit.set_sum(taken, unit.activate(0, unit.sum(taken) + unit.peephole("input", unit.cell())))
    if unit.layer.attrs.get("input_forget", 0):
        unit.set_sum(forget, 1 - unit.sum(taken))
    else:
        unit.set_sum(forget, unit.activate(0, unit.sum(forget) + unit.peephole("forget", unit.cell())))
    unit.set_sum(cell, unit.activate(1, unit.sum(cell)))
    unit.set_cell(unit.sum(forget) * unit.cell() + unit.sum(taken) * unit.sum(cell))
    gate = unit.activate(0, unit.sum(out) + unit.peephole("output", unit.cell()))
    unit.set_hidden(gate * unit.function(2, unit.cell()))


def _gru(attrs: dict) -> tuple:
    """Return the phases: the reset precedes the last product, which needs it of all units, or follows it."""
    if attrs.get("linear_before_reset", 0):
        return (_gru_with_reset_after_product,)
    return _gru_reset, _gru_with_reset_before_product


CELLS = {
    "RNN": Cell(1, ("Tanh",), lambda attrs: (_rnn,)),
    "GRU": Cell(3, ("Sigmoid", "Tanh"), _gru),
    "LSTM": Cell(4, ("Sigmoid", "Tanh", "Tanh"), lambda attrs: (_lstm,), initial=(5, 6)),
}


def run(layer: Layer, inputs: dict, results: dict) -> None:
    """Emit all steps of a layer; `inputs` and `results` are `Unit.buffers`."""
    buffers, phases = inputs | results, layer.cell.phases(layer.attrs)
    read = list(inputs.values())
    written = [results["y"], *results["states"], *(results[name] for name in results if name not in ("y", "states"))]
    # Sequences vary faster than blocks: those of a batch read the same weights.
    sizes = (len(layer.backward), layer.blocks, layer.batch, LANES)
    across = partial(points, sizes=sizes, read=read, written=written)
    with across("first") as (direction, block, sequence, lane):
        at = (direction, sequence, block * LANES + lane)
        for number, state in enumerate(results["states"]):
            first = inputs.get(f"state{number}")
            store(state, at, tirx.const(0, state.dtype) if first is None else first[at])
        store(results["scratch"], (0, *at), results["states"][0][at])
        if "lengths" in inputs:
            # As in ONNX Runtime, the last states of a sequence without steps are 0.
            with when(length_of(layer, inputs, sequence) < 1):
                for state in results["states"]:
                    store(state, at, tirx.const(0, state.dtype))
    with loop(layer.steps) as step:
        layer.cell.before(layer, step, buffers)
        for phase in phases:
            name = phase.__name__.strip("_")
            with across(name, step=(layer.steps, step)) as (number, direction, block, sequence, lane):
                length = length_of(layer, inputs, sequence)
                place = _place(layer, direction, number, length)
                sums = registers(layer.cell.gates, results["y"].dtype)
                unit = Unit(layer, number, place, direction, sequence, block, lane, sums, buffers)
                with when(number < length):
                    phase(unit)
                    if phase is phases[-1]:
                        store(results["y"], (place, *unit.at), results["states"][0][unit.at])
                if "lengths" in inputs and phase is phases[-1]:
                    with when(number >= length):
                        store(results["y"], (number, *unit.at), tirx.const(0, results["y"].dtype))


def length_of(layer: Layer, inputs: dict, sequence: ir.Expr) -> ir.Expr:
    """Return the number of steps of a sequence."""
    steps, lengths = tirx.IntImm("int64", layer.steps), inputs.get("lengths")
    return steps if lengths is None else tirx.min(tirx.Cast("int64", lengths[sequence]), steps)


def _place(layer: Layer, direction: ir.Expr, step: ir.Expr, length: ir.Expr) -> ir.Expr:
    """Return the position of the input that a step reads and of the output that it writes."""
    turned = length - 1 - step
    if len(layer.backward) > 1:
        return tirx.Select(direction == 0, step, turned)
    return turned if layer.backward[0] else step
