# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM: one matmul for the inputs of all steps, then one kernel whose loop runs over the steps.

A layer has the same few kernels for sequences of any length. On a GPU each step of its loop is a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import prod

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.activations import Function, functions
from smartmem_tvm.frontend.converters.loops import loops_kernel
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of
from smartmem_tvm.frontend.converters.recurrent_cells import CELLS, LANES, Cell, Layer, run
from smartmem_tvm.ir.mask_positions import RECURRENT

_ENDING: ContextVar[bool] = ContextVar("layers end at a number of steps", default=False)
_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_TIME_FIRST = [1, 0, 2]  # swaps the first two axes of an input or a state
_UNITS = 2  # the axis of hidden units in weights, biases and states


@contextmanager
def ending_at_length() -> Iterator[None]:
    """Give layers without numbers of steps that of all steps within the context: an open length takes its place.

    A layer that runs backwards begins at the last step, and its last state is that of the last step.
    """
    token = _ENDING.set(True)
    try:
        yield
    finally:
        _ENDING.reset(token)


def recurrent(node: Node) -> relax.Expr:
    """RNN, GRU and LSTM with all attributes; half precision is computed in single precision."""
    return layer_of(node, CELLS[node.op], _tensors, shape_of(node.inputs[2])[-1])


def layer_of(node: Node, cell: Cell, tensors_of: Callable[[Node, Cell, int], dict], hidden: int) -> relax.Expr:
    """Build the kernel of a layer and return the results that the node names.

    Parameters
    ----------
    tensors_of : callable
        (node, cell, directions) -> the kernel's inputs, named as in `recurrent_cells.Unit`.
    hidden : int
        Number of hidden units.
    """
    direction = node.text("direction", "forward")
    if direction not in _BACKWARD:
        raise ValueError(f"its direction {direction} is none of {', '.join(_BACKWARD)}")
    backward = _BACKWARD[direction]
    tensors = tensors_of(node, cell, len(backward))
    steps, batch, _, _, units = shape_of(tensors["x"])
    working = dtype_of(tensors["x"])
    layer = Layer(cell, steps, batch, hidden, backward, _activations(node, cell, len(backward)), node.attrs)
    sizes, own = (len(backward), batch, units), cell.scratch(layer)
    states = [(sizes, working)] * len(cell.initial)
    outputs = [((steps, *sizes), working), *states, (layer.scratch, working), *own.values()]

    def body(inputs, results) -> None:
        y, *rest = results
        named = dict(zip(("scratch", *own), rest[len(states) :], strict=True))
        run(layer, dict(zip(tensors, inputs, strict=True)), {"y": y, "states": rest[: len(states)], **named})

    if _ENDING.get() and "lengths" not in tensors:
        # As int64, which is no type of ONNX's here: of one sequence the length itself then takes its place.
        tensors["lengths"] = constant(np.full(batch, steps), "int64")
    places = list(tensors)
    steps_at = [places.index("x"), places.index("lengths") if "lengths" in places else -1]
    name, read = node.op.split(".")[-1].lower(), list(tensors.values())
    results = loops_kernel(node, name, read, outputs, body, {RECURRENT: steps_at})
    asked = [_as_asked(node, each, hidden) for each in results[: node.outputs]]
    return relax.Tuple(asked) if len(asked) > 1 else asked[0]


def _as_asked(node: Node, result: relax.Expr, hidden: int) -> relax.Expr:
    """Return a result in the node's type and order of axes, without the padding of the last vector of units."""
    if shape_of(result)[-1] != hidden:
        result = node.emit(relax.op.strided_slice(result, [-1], [0], [hidden]))
    dtype = dtype_of(node.inputs[0])
    result = node.emit(relax.op.astype(result, dtype)) if dtype_of(result) != dtype else result
    if not node.attrs.get("layout", 0):
        return result
    return node.emit(relax.op.permute_dims(result, [2, 0, 1, 3] if result.ty.ndim == 4 else _TIME_FIRST))


def _tensors(node: Node, cell: Cell, directions: int) -> dict[str, relax.Expr]:
    """Return the kernel's inputs, named as in `recurrent_cells.Unit`; hidden units are padded to whole vectors."""
    dtype = dtype_of(node.inputs[0])
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    batch_first = bool(node.attrs.get("layout", 0))
    hidden = shape_of(node.inputs[2])[-1]
    units = partial(whole_vectors, node)

    def wide(position: int) -> relax.Expr:
        expr = node.inputs[position]
        return expr if dtype == working else node.emit(relax.op.astype(expr, working))

    def time_first(position: int) -> relax.Expr:
        return node.emit(relax.op.permute_dims(wide(position), _TIME_FIRST)) if batch_first else wide(position)

    found = {"r": in_blocks(node, units(wide(2), (directions, cell.gates, hidden, hidden)))}
    has_bias = node.input(3) is not None
    bias, last = biases(node, units(wide(3), (directions, 2 * cell.gates, hidden))) if has_bias else (None, None)
    if node.attrs.get("linear_before_reset", 0):
        rows = (directions, shape_of(found["r"])[1] * LANES)
        found["rb"] = last if has_bias else constant(np.zeros(rows), working)
    weights = units(wide(1), (directions, cell.gates, hidden, shape_of(node.inputs[1])[-1]))
    found["x"] = _projected(node, time_first(0), weights, bias)
    for number, position in enumerate(cell.initial):
        if node.input(position) is not None:
            state = time_first(position)
            found[f"state{number}"] = units(state, shape_of(state))
    if node.input(4) is not None:
        found["lengths"] = node.inputs[4]
    if node.input(7) is not None:
        found["p"] = units(wide(7), (directions, 3, hidden))
    return found


def whole_vectors(node: Node, expr: relax.Expr, sizes: Sequence[int]) -> relax.Expr:
    """Reshape an operand to these sizes and pad the third, the hidden units, to whole vectors."""
    expr = node.emit(relax.op.reshape(expr, sizes))
    missing = -sizes[_UNITS] % LANES
    if not missing:
        return expr
    widths = [0] * (2 * len(sizes))
    widths[2 * _UNITS + 1] = missing
    return node.emit(relax.op.nn.pad(expr, widths))


def in_blocks(node: Node, r: relax.Expr) -> relax.Expr:
    """Lay out recurrent weights as [directions, blocks of units, source units, gates, units of a block].

    The weights of a vector of units are then contiguous in memory.
    """
    directions, gates, units, hidden = shape_of(r)
    blocks = node.emit(relax.op.reshape(r, [directions, gates, units // LANES, LANES, hidden]))
    return node.emit(relax.op.permute_dims(blocks, [0, 2, 4, 1, 3]))


def biases(node: Node, bias: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Return the bias of the input's part of the gates, and the state's bias of the last gate.

    With ``linear_before_reset`` the latter is added to the product with the state, before the reset; otherwise it is
    part of the former.
    """
    directions, both, units = shape_of(bias)
    gates = both // 2
    of_input, of_state = (
        node.emit(relax.op.strided_slice(bias, [1], [first], [first + gates])) for first in (0, gates)
    )
    last = node.emit(relax.op.strided_slice(of_state, [1], [gates - 1], [gates]))
    if node.attrs.get("linear_before_reset", 0):
        others = constant((np.arange(gates) < gates - 1)[:, None], dtype_of(bias))
        of_state = node.emit(relax.op.multiply(of_state, others))
    return node.emit(relax.op.add(of_input, of_state)), node.emit(relax.op.reshape(last, [directions, units]))


def _projected(node: Node, x: relax.Expr, w: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """Return the input's part of the gates of all steps, [steps, batch, directions, gates, units]: one matmul."""
    (steps, batch, width), rows = shape_of(x), shape_of(w)[:3]
    flat = node.emit(relax.op.reshape(x, [steps * batch, width]))
    weights = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(w, [prod(rows), width])), [1, 0]))
    result = node.emit(relax.op.matmul(flat, weights))
    if bias is not None:
        result = node.emit(relax.op.add(result, node.emit(relax.op.reshape(bias, [prod(rows)]))))
    return node.emit(relax.op.reshape(result, [steps, batch, *rows]))


def _activations(node: Node, cell: Cell, directions: int) -> list[list[Function]]:
    """Return the activation functions of each direction."""
    each = len(cell.activations)
    names = [name.decode() for name in node.attrs.get("activations", ())] or list(cell.activations) * directions
    if directions == 1 and len(names) == 2 * each and names[:each] == names[each:]:
        names = names[:each]  # the default of RNN's schema lists those of two directions, and tools write it out
    if len(names) != each * directions:
        raise ValueError(f"it has {len(names)} activations where {each * directions} belong")
    found = functions(names, node.attrs.get("activation_alpha", ()), node.attrs.get("activation_beta", ()))
    return [found[first : first + each] for first in range(0, len(found), each)]


CONVERTERS = {"GRU": recurrent, "LSTM": recurrent, "RNN": recurrent}
