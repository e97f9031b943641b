# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM: one matmul for the inputs of all steps, then one kernel whose loops run over the steps.

The sequences of a batch, and the two directions, do not wait for each other: they are the rows of the kernel. A layer
is the same few kernels however long its sequences are.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.activations import Function, functions
from smartmem_tvm.frontend.converters.loops import rows_kernel
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of
from smartmem_tvm.frontend.converters.recurrent_cells import CELLS, Cell, Layer, run

_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_TIME_FIRST = [1, 0, 2]  # exchanges the first two axes of an input or a state


def recurrent(node: Node) -> relax.Expr:
    """RNN, GRU and LSTM with all attributes; what is in half precision is computed in single precision."""
    direction = node.text("direction", "forward")
    if direction not in _BACKWARD:
        raise ValueError(f"its direction {direction} is none of {', '.join(_BACKWARD)}")
    cell, backward = CELLS[node.op], _BACKWARD[direction]
    tensors = _tensors(node, cell, len(backward))
    steps, batch, _, _, hidden = shape_of(tensors["x"])
    layer = Layer(cell, steps, hidden, backward, _activations(node, cell, len(backward)), node.attrs)
    sizes, working = (len(backward), batch, hidden), dtype_of(tensors["x"])
    outputs = [((steps, *sizes), working)] + [(sizes, working)] * len(cell.initial)
    scratch = ((*sizes[:2], cell.gates, hidden), working)

    def body(row, inputs, results) -> None:
        *states, sums = results[1:]
        run(layer, tuple(row), dict(zip(tensors, inputs, strict=True), y=results[0], states=states, sums=sums))

    name = node.op.lower()
    *results, _ = rows_kernel(node, name, sizes[:2], list(tensors.values()), [*outputs, scratch], body)
    asked = [_as_asked(node, each) for each in results[: node.outputs]]
    return relax.Tuple(asked) if len(asked) > 1 else asked[0]


def _as_asked(node: Node, result: relax.Expr) -> relax.Expr:
    """A result in the node's own type and order of axes."""
    dtype = dtype_of(node.inputs[0])
    result = node.emit(relax.op.astype(result, dtype)) if dtype_of(result) != dtype else result
    if not node.attrs.get("layout", 0):
        return result
    return node.emit(relax.op.permute_dims(result, [2, 0, 1, 3] if result.ty.ndim == 4 else _TIME_FIRST))


def _tensors(node: Node, cell: Cell, directions: int) -> dict[str, relax.Expr]:
    """What the kernel reads, as `recurrent_cells.run` calls it."""
    dtype = dtype_of(node.inputs[0])
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    batch_first = bool(node.attrs.get("layout", 0))

    def wide(position: int) -> relax.Expr:
        expr = node.inputs[position]
        return expr if dtype == working else node.emit(relax.op.astype(expr, working))

    def time_first(position: int) -> relax.Expr:
        return node.emit(relax.op.permute_dims(wide(position), _TIME_FIRST)) if batch_first else wide(position)

    hidden = shape_of(node.inputs[2])[-1]
    r = node.emit(relax.op.reshape(wide(2), [directions, cell.gates, hidden, hidden]))
    found = {"r": node.emit(relax.op.permute_dims(r, [0, 3, 1, 2]))}
    bias, last = (None, None) if node.input(3) is None else _biases(node, wide(3), hidden)
    if node.attrs.get("linear_before_reset", 0):
        found["rb"] = constant(np.zeros((directions, hidden)), working) if last is None else last
    found["x"] = _projected(node, time_first(0), wide(1), bias, (directions, cell.gates, hidden))
    states = {f"state{number}": position for number, position in enumerate(cell.initial)}
    found |= {name: time_first(position) for name, position in states.items() if node.input(position) is not None}
    if node.input(4) is not None:
        found["lengths"] = node.inputs[4]
    if node.input(7) is not None:
        found["p"] = node.emit(relax.op.reshape(wide(7), [directions, 3, hidden]))
    return found


def _biases(node: Node, bias: relax.Expr, hidden: int) -> tuple[relax.Expr, relax.Expr]:
    """What is added to the input's part of the gates, and the last gate's bias of the state's part.

    The latter stays where the product with the state is where that comes before the reset; elsewhere all is one.
    """
    rows = shape_of(bias)[1] // 2
    of_input, of_state = (node.emit(relax.op.strided_slice(bias, [1], [first], [first + rows])) for first in (0, rows))
    last = node.emit(relax.op.strided_slice(of_state, [1], [rows - hidden], [rows]))
    if node.attrs.get("linear_before_reset", 0):
        others = constant(np.arange(rows) < rows - hidden, dtype_of(bias))
        of_state = node.emit(relax.op.multiply(of_state, others))
    return node.emit(relax.op.add(of_input, of_state)), last


def _projected(node: Node, x: relax.Expr, w: relax.Expr, bias: relax.Expr | None, rows: tuple) -> relax.Expr:
    """The input's part of the gates of all steps, [steps, batch, directions, gates, hidden]: one matmul."""
    steps, batch, width = shape_of(x)
    flat = node.emit(relax.op.reshape(x, [steps * batch, width]))
    weights = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(w, [prod(rows), width])), [1, 0]))
    result = node.emit(relax.op.matmul(flat, weights))
    if bias is not None:
        result = node.emit(relax.op.add(result, node.emit(relax.op.reshape(bias, [prod(rows)]))))
    return node.emit(relax.op.reshape(result, [steps, batch, *rows]))


def _activations(node: Node, cell: Cell, directions: int) -> list[list[Function]]:
    """The functions of each direction."""
    each = len(cell.activations)
    names = [name.decode() for name in node.attrs.get("activations", ())] or list(cell.activations) * directions
    if len(names) != each * directions:
        raise ValueError(f"it has {len(names)} activations where {each * directions} belong")
    found = functions(names, node.attrs.get("activation_alpha", ()), node.attrs.get("activation_beta", ()))
    return [found[first : first + each] for first in range(0, len(found), each)]


CONVERTERS = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
