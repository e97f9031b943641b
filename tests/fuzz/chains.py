# SPDX-License-Identifier: Apache-2.0
"""A seed -> a recurrence that is written out: the same few operators for each step, of the states of the step before.

Steps read places of a sequence, weights that all of them share, and numbers of their own. Some chains are irregular: a
step is left out or has an operator more, as at the first and the last one of networks.
"""

from __future__ import annotations

from .drawing import Drawing, NotDrawn

_WIDTHS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 97)
_BATCHES = (1, 1, 1, 2, 3, 5, 33)
_TRIES = 30
_ALONE = ("Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Erf")
_TWO = ("Add", "Sub", "Mul", "Max", "Min")


class _Chain:
    """The sizes of a chain, and what all of its steps read."""

    def __init__(self, g: Drawing):
        self.g, self.kind = g, g.pick(["float32"] * 6 + ["float16", "float64"])
        self.steps, self.batch, self.width = g.between(2, 40), g.pick(_BATCHES), g.pick(_WIDTHS)
        if g.chance(0.2):
            self.steps = self.batch = self.width = g.between(2, 17)  # square shapes hide a wrong permutation
        if self.batch * self.width * self.steps > g.limit:
            raise NotDrawn
        self.shape = (self.batch, self.width)
        self.time = g.pick([0, 1, 1, 2])  # the axis of steps in the sequence
        sizes = [*self.shape]
        sizes.insert(self.time, self.steps)
        self.sequences = [self.given(tuple(sizes), 0.9) for _ in range(g.between(1, 2))]
        self.weights = [self.given((self.width, self.width), 0.2, 0.5) for _ in range(g.between(0, 2))]
        self.vectors = [self.given((self.width,), 0.3) for _ in range(g.between(1, 3))]
        self.own = g.chance(0.3)  # each step has numbers of its own

    def given(self, shape: tuple[int, ...], inputs: float, below: float = 2.0) -> str:
        return self.g.given(self.g.numbers(shape, self.kind, below), inputs)

    def at(self, sequence: str, step: int) -> str:
        """A place of a sequence, as exporters write it."""
        g = self.g
        if g.chance(0.8):
            return g.node("Gather", [sequence, g.constant(step, "int64")], axis=self.time)
        first, last, axes = (g.constant([n], "int64") for n in (step, step + 1, self.time))
        piece = g.node("Slice", [sequence, first, last, axes])
        return g.node("Squeeze", [piece, axes])


def draw_chain(g: Drawing) -> list[str]:
    """A chain; the names of its results."""
    for _ in range(_TRIES):
        try:
            return _drawn(_Chain(g))
        except NotDrawn:
            for held in (g.nodes, g.readers, g.values, g.inputs, g.constants):
                held.clear()
    raise NotDrawn(f"nothing of {_TRIES} tries")


def _drawn(chain: _Chain) -> list[str]:
    g = chain.g
    states = [chain.given(chain.shape, 0.5) for _ in range(g.pick([1, 1, 2, 3]))]
    program = [_operator(g, chain) for _ in range(g.between(1, 6))]
    odd = {g.between(0, chain.steps - 1) for _ in range(g.pick([0, 0, 0, 1, 2]))}
    kept: list[list[str]] = []
    for step in range(chain.steps):
        states = _step(chain, states, program[: max(1, len(program) - (step in odd))], step)
        kept.append(states)
    return _results(chain, kept)


def _operator(g: Drawing, chain: _Chain) -> tuple:
    """One operator of a step: its name, and numbers that say what it reads."""
    names = [*_ALONE, *_TWO, *_TWO, *_TWO, "ReduceSum", "ReduceMax", "ReduceMean", "Softmax", "halves", "turn", "Div"]
    names += ["MatMul"] * 4 if chain.weights else []
    return g.pick(names), g.between(0, 99), g.between(0, 99), g.between(-2, -1)


def _step(chain: _Chain, states: list[str], program: list[tuple], step: int) -> list[str]:
    g = chain.g
    known = [*states, *(chain.at(each, step) for each in chain.sequences), *chain.vectors]
    if chain.own:
        known.append(g.constant(g.numbers((1, chain.width), chain.kind, 2.0)))
    whole = len(states) + len(chain.sequences)  # those of the shape of a state come first
    made: list[str] = []
    for name, one, other, axis in program:
        readable = [*known[:whole], *made, *known[whole:]]
        same = [*known[:whole], *made]
        made.append(_applied(chain, name, same[-1 - one % len(same)], readable[other % len(readable)], one, axis))
    # A state is bounded, or 40 steps are too many.
    last = [g.node("Tanh", [g.node("Add", [made[-1 - n % len(made)], states[n]])]) for n in range(len(states))]
    return last if len(last) == 1 or g.readers[states[0]] else [*last[1:], last[0]]


def _applied(chain: _Chain, name: str, x: str, y: str, number: int, axis: int) -> str:
    g = chain.g
    if name in _ALONE:
        return g.node(name, [x])
    if name in _TWO:
        return g.node(name, [x, y])
    if name == "Div":
        one = g.constant(1.5, chain.kind)
        return g.node("Div", [x, g.node("Add", [g.node("Abs", [y]), one])])
    if name == "MatMul":
        return g.node("MatMul", [x, chain.weights[number % len(chain.weights)]])
    if name == "Softmax":
        return g.node("Softmax", [x], axis=axis)
    if name == "turn" and chain.batch == chain.width:
        return g.node("Transpose", [x], perm=[1, 0])
    if name in ("halves", "turn"):
        return _exchanged(chain, x, number)
    held = _reduced(g, "ReduceMax" if name == "ReduceMax" else "ReduceMean", x, axis)
    if name == "ReduceSum":
        held = g.node("Mul", [held, g.constant(0.5, chain.kind)])
    return g.node("Sub", [x, held])


def _reduced(g: Drawing, name: str, x: str, axis: int) -> str:
    if g.opset >= 18:
        return g.node(name, [x, g.constant([axis], "int64")], keepdims=1)
    return g.node(name, [x], axes=[axis], keepdims=1)


def _exchanged(chain: _Chain, x: str, number: int) -> str:
    """The two parts of a row in the other order."""
    g = chain.g
    if chain.width < 2:
        return g.node("Neg", [x])
    cut, end, zero, axes = 1 + number % (chain.width - 1), chain.width, 0, g.constant([1], "int64")
    ends = [g.constant([n], "int64") for n in (zero, cut, end)]
    low, high = (g.node("Slice", [x, ends[n], ends[n + 1], axes]) for n in (0, 1))
    return g.node("Concat", [high, low], axis=1)


def _results(chain: _Chain, kept: list[list[str]]) -> list[str]:
    """The last states, some in the middle, and all of one put together."""
    g = chain.g
    names = list(kept[-1][: g.between(1, len(kept[-1]))])
    if g.chance(0.4):
        names += [g.pick(g.pick(kept)) for _ in range(g.between(1, 3))]
    if g.chance(0.5):
        number = g.between(0, len(kept[0]) - 1)
        axes = g.constant([chain.time], "int64")
        rows = [g.node("Unsqueeze", [each[number], axes]) for each in kept]
        every = g.node("Concat", rows, axis=chain.time)
        names.append(g.node("Mul", [every, chain.sequences[0]]) if g.chance(0.3) else every)
    if g.chance(0.3):  # what is no part of the chain reads a step, and the last one is read with that
        wide = chain.given((chain.width, 3), 0.2)
        names.append(g.node("MatMul", [g.pick(g.pick(kept)), wide]))
    return [name for name in dict.fromkeys(names) if any(name in node.output for node in g.nodes)]
