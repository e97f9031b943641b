# SPDX-License-Identifier: Apache-2.0
"""Whole layers as one operator: recurrent ones and attention, in a table of their own.

The table of graphs stays as it is, so that seeds go on meaning the graphs that they meant before.
"""

from ..drawing import FLOATS, Drawing

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(g: Drawing) -> None:
    op = g.pick(list(_GATES))
    x = g.tensor(("float32",), 3, 3, below=20, where=lambda v: v.size > 0)
    length, batch, width = g.values[x].shape
    hidden, directions = g.size() or 1, g.pick([1, 1, 2])
    direction = "bidirectional" if directions == 2 else g.pick(["forward", "reverse"])
    gates = _GATES[op] * hidden

    def weights(*shape: int) -> str:
        return g.given((g.numbers((directions, *shape), "float32", 2.0) * 0.5).astype("f4"), inputs=0.3)

    given = [x, weights(gates, width), weights(gates, hidden)]
    given.append(weights(2 * gates) if g.chance(0.6) else "")
    lengths = g.rng.integers(1, length, batch, endpoint=True).astype("int32")
    given.append(g.constant(lengths) if g.chance(0.2) else "")
    states = 2 if op == "LSTM" else 1
    given += [weights(batch, hidden) for _ in range(states)] if g.chance(0.4) else [""] * states
    more = {"linear_before_reset": g.between(0, 1)} if op == "GRU" else {}
    g.node(op, given, 1 + states, hidden_size=hidden, direction=direction, **more)


def attention_operator(g: Drawing) -> None:
    """Attention of four dimensions, with fewer heads of keys and values or without, and perhaps a mask."""
    kind, batch, shared = g.pick(FLOATS[:1]), g.size() or 1, g.pick([1, 1, 2, 3])
    heads, queries, keys, depth, other = (g.size() or 1 for _ in range(5))
    shapes = [(batch, shared * heads, queries, depth), (batch, heads, keys, depth), (batch, heads, keys, other)]
    given = [g.given(g.numbers(shape, kind, 4.0), inputs=1.0) for shape in shapes]
    if g.chance(0.4):
        given.append(g.given(g.numbers((g.pick([1, queries]), keys)[-2:], kind, 4.0)))
    g.node("Attention", given, is_causal=g.between(0, 1), softcap=g.pick([0.0, 0.0, 2.0]))


def top_of_rows(g: Drawing) -> None:
    """Rows of one number, of two: their maximum, their sum, each less it."""
    x = g.tensor(FLOATS, 1, below=50, where=lambda v: v.size > 0)
    axis = g.axis(g.values[x].ndim)
    axes = {"axes": [axis]} if g.opset < 18 else {}
    given = [x] if g.opset < 18 else [x, g.constant([axis], "int64")]
    y = g.node("Exp", [g.node("Sub", [x, g.node("ReduceMax", given, **axes)])])
    g.node("Div", [y, g.node("ReduceSum", [y, g.constant([axis], "int64")])])


LAYERS = {each.__name__: (each, 15.0) for each in (recurrent, attention_operator)} | {"top_of_rows": (top_of_rows, 6.0)}
"""Name -> the function that draws it, and how often in proportion to those of `table.TABLE`."""
