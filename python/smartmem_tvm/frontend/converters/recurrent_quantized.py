# SPDX-License-Identifier: Apache-2.0
"""com.microsoft.DynamicQuantizeLSTM: an LSTM with 8-bit weights, as ONNX Runtime's quantizer writes it.

The input is quantized once for all steps, and the hidden state at each step, both by the range of their values, for all
sequences of a direction together. ONNX Runtime divides the sequences of a batch among its threads and takes a scale for
each share; this converter does what ONNX Runtime does on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from tvm import ir, relax, tirx

from smartmem_tvm.frontend.converters.loops import loop, points, registers, store, unrolled
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of, value_of
from smartmem_tvm.frontend.converters.quantization import centred, dynamically_quantized, factors
from smartmem_tvm.frontend.converters.recurrent import biases, in_blocks, layer_of, whole_vectors
from smartmem_tvm.frontend.converters.recurrent_cells import CELLS, LANES, Cell, Layer, Unit, length_of
from smartmem_tvm.ir.packings import PAIRS, QUADS, Packing, pack_quads

_GATES = CELLS["LSTM"].gates
_LOW, _HIGH = range(2)  # places in the buffer of extremes
_SCALE, _POINT = range(2)  # places in the buffer of the quantization
_LEVELS = tirx.const(255, "float32")


def dynamic_quantize_lstm(node: Node) -> relax.Expr:
    """com.microsoft.DynamicQuantizeLSTM, with all inputs and attributes."""
    hidden, directions = shape_of(node.inputs[2])[1], shape_of(node.inputs[2])[0]
    r, r_scale = _weights(node, 2, 10, (directions, _GATES, hidden))
    packing = QUADS if dtype_of(r) == "int8" else PAIRS
    return layer_of(node, _cell(packing), partial(_tensors, r, r_scale), hidden)


def _tensors(r: relax.Expr, r_scale: relax.Expr, node: Node, cell: Cell, directions: int) -> dict[str, relax.Expr]:
    hidden = shape_of(node.inputs[2])[1]
    rows = (directions, _GATES, hidden)
    bias = node.input(3)
    if bias is not None:
        bias, _ = biases(node, whole_vectors(node, bias, (directions, 2 * _GATES, hidden)))
    found = {"rs": whole_vectors(node, r_scale, rows)}
    if dtype_of(r) == "int8":
        sums = constant(value_of(r).sum(1, dtype="int32"), "int32")
        r, found["r0"] = _in_quads(r), whole_vectors(node, sums, rows)
    else:
        r = _in_pairs(node, r)
    # [directions, from, gates, units] -> [directions, gates, units, from], as an LSTM has it.
    r = node.emit(relax.op.permute_dims(r, [0, 2, 3, 1]))
    found["r"] = in_blocks(node, whole_vectors(node, r, shape_of(r)))
    found["x"] = _projected(node, rows, bias)
    for number, position in enumerate(cell.initial):
        if node.input(position) is not None:
            found[f"state{number}"] = whole_vectors(node, node.inputs[position], shape_of(node.inputs[position]))
    if node.input(4) is not None:
        found["lengths"] = node.inputs[4]
    if node.input(7) is not None:
        found["p"] = whole_vectors(node, node.inputs[7], (directions, 3, hidden))
    return found


def _weights(node: Node, position: int, scale_at: int, rows: tuple[int, ...]) -> tuple[relax.Expr, relax.Expr]:
    """Return weights minus zero points, [directions, from, gates, units], and scales, [directions, gates, units]."""
    directions, gates, hidden = rows
    scale, zero = node.inputs[scale_at], node.inputs[scale_at + 1]
    for each in (scale, zero):
        if shape_of(each) not in ([directions], [directions, gates * hidden]):
            raise ValueError(f"its scales or zero points have shape {shape_of(each)}, which is neither {[directions]} "
                             f"nor {[directions, gates * hidden]}")  # fmt: skip
    zero = node.reshape(zero, (directions, 1, shape_of(zero)[1] if len(shape_of(zero)) == 2 else 1))
    values = _narrow(node, centred(node, node.inputs[position], zero))
    if len(shape_of(scale)) == 1:
        scale = node.emit(relax.op.broadcast_to(node.reshape(scale, (directions, 1)), (directions, gates * hidden)))
    return node.reshape(values, (directions, -1, gates, hidden)), node.reshape(scale, rows)


def _narrow(node: Node, values: relax.Expr) -> relax.Expr:
    """Return differences of two bytes in the narrowest type that is sure to hold them."""
    known = value_of(values)
    fits = known is not None and known.size and known.min() >= -128 and known.max() <= 127
    return node.astype(values, "int8" if fits else "int16")


def _in_quads(r: relax.Expr) -> relax.Expr:
    """Return the known weights of four input units packed in one integer (`ir.packings`)."""
    known = value_of(r)
    missing = -known.shape[1] % QUADS.numbers
    return constant(pack_quads(np.pad(known, [(0, 0), (0, missing), (0, 0), (0, 0)]), 1), "int32")


def _in_pairs(node: Node, r: relax.Expr) -> relax.Expr:
    """Return the weights of two input units packed in one integer."""
    if shape_of(r)[1] % PAIRS.numbers:
        r = node.emit(relax.op.nn.pad(r, [0, 0, 0, 1, 0, 0, 0, 0]))
    r = node.emit(relax.op.astype(r, "int32"))
    first, second = (node.emit(relax.op.strided_slice(r, [1], [at], [shape_of(r)[1]], [2])) for at in (0, 1))
    first = node.emit(relax.op.bitwise_and(first, constant((1 << 16) - 1, "int32")))
    second = node.emit(relax.op.left_shift(second, constant(16, "int32")))
    return node.emit(relax.op.bitwise_or(first, second))


def _projected(node: Node, rows: tuple[int, ...], bias: relax.Expr | None) -> relax.Expr:
    """Return the input's part of the gates of all steps, [steps, batch, directions, gates, units]."""
    x, (steps, batch, width) = node.inputs[0], shape_of(node.inputs[0])
    w, scale = _weights(node, 1, 8, rows)
    x, x_scale, x_zero = dynamically_quantized(node, x, _counted(node, x))
    flat = node.emit(relax.op.reshape(x, (steps * batch, width)))
    left, right, over = factors(node, (flat, x_zero), (_by_input(node, w, (width, prod(rows))), None))
    sums = node.emit(relax.op.matmul(left, right, out_dtype="int32"))
    sums = sums if over is None else node.emit(relax.op.subtract(sums, over))
    sums = node.emit(relax.op.astype(sums, "float32"))
    scale = node.emit(relax.op.multiply(node.reshape(scale, (prod(rows),)), x_scale))
    result = node.emit(relax.op.multiply(sums, scale))
    result = whole_vectors(node, result, (steps * batch * rows[0], *rows[1:]))
    result = node.emit(relax.op.reshape(result, (steps, batch, *rows[:2], shape_of(result)[-1])))
    return result if bias is None else node.emit(relax.op.add(result, bias))


def _by_input(node: Node, w: relax.Expr, shape: tuple[int, int]) -> relax.Expr:
    """Return the weights as [from, directions * gates * units] in 16 bits; a constant stays one."""
    known = value_of(w)
    if known is not None:
        return constant(np.ascontiguousarray(known.transpose(1, 0, 2, 3)).reshape(shape), "int16")
    turned = node.emit(relax.op.permute_dims(w, [1, 0, 2, 3]))
    return node.emit(relax.op.reshape(node.emit(relax.op.astype(turned, "int16")), shape))


def _counted(node: Node, x: relax.Expr) -> relax.Expr:
    """Return the input that determines its scale: the steps of the longest sequence, padding of others included."""
    if node.input(4) is None:
        return x
    places = constant(np.arange(shape_of(x)[0]).reshape(-1, 1, 1), "int32")
    used = node.emit(relax.op.less(places, node.emit(relax.op.max(node.inputs[4]))))
    return node.emit(relax.op.where(used, x, constant(0, dtype_of(x))))


def _scratch(packing: Packing, layer: Layer) -> dict:
    """Return the buffers of a step: range and scale of the last hidden state, and that state as packed integers."""
    directions = len(layer.backward)
    return {
        "extremes": ((2, directions, LANES), "float32"),
        "quantization": ((2, directions), "float32"),
        "packed": ((directions, layer.batch, layer.blocks * LANES // packing.numbers), "int32"),
    }


def _quantize(packing: Packing, layer: Layer, step: ir.Expr, buffers: dict) -> None:
    """Quantize the hidden state: extremes of each SIMD lane, then of all lanes, then each number.

    Pairs hold numbers minus their zero point, quads the unsigned bytes themselves.
    """
    extremes, quantization, packed = (buffers[name] for name in _scratch(packing, layer))
    directions, read, at_step = len(layer.backward), [buffers["scratch"]], (layer.steps, step)
    read += [buffers["lengths"]] if "lengths" in buffers else []
    with points("extremes", (directions, LANES), read, [extremes], at_step) as (number, direction, lane):
        _extremes(layer, buffers, number, direction, lane)
    with points("quantization", (directions,), [extremes], [quantization], at_step) as (_, direction):
        _parameters(extremes, quantization, direction)
    count = LANES // packing.numbers
    sizes = (directions, layer.blocks, layer.batch, count)
    with points("packed", sizes, [*read, quantization], [packed], at_step) as place:
        number, direction, block, sequence, lane = place
        scale, point = (quantization[(which, direction)] for which in (_SCALE, _POINT))

        def rounded(which: int):
            """Round as ONNX Runtime does: clamp to the bounds, then take the nearest integer, ties to even."""
            unit = block * LANES + lane * packing.numbers + which
            scaled = buffers["scratch"][(number % 2, direction, sequence, unit)] / scale
            found = tirx.nearbyint(tirx.min(tirx.max(scaled, -point), _LEVELS - point))
            return (found + point if packing is QUADS else found).astype("int32")

        store(
            packed, (direction, sequence, block * count + lane), packing.pack([*map(rounded, range(packing.numbers))])
        )


def _extremes(layer: Layer, buffers: dict, step: ir.Expr, direction: ir.Expr, lane: ir.Expr) -> None:
    """Reduce the hidden state to its extremes; a sequence that has ended counts as 0."""
    found = registers(2, "float32")
    zero = tirx.const(0, "float32")
    for which in (_LOW, _HIGH):
        store(found, (which,), zero)
    with loop(layer.batch) as sequence, loop(layer.blocks) as block:
        unit = block * LANES + lane
        value = buffers["scratch"][(step % 2, direction, sequence, unit)]
        counts = unit < layer.hidden
        if "lengths" in buffers:
            counts = tirx.And(counts, step <= length_of(layer, buffers, sequence))
        value = tirx.Select(counts, value, zero)
        store(found, (_LOW,), tirx.min(found[_LOW], value))
        store(found, (_HIGH,), tirx.max(found[_HIGH], value))
    for which in (_LOW, _HIGH):
        store(buffers["extremes"], (which, direction, lane), found[which])


def _parameters(extremes, quantization, direction: ir.Expr) -> None:
    found = registers(2, "float32")
    zero = tirx.const(0, "float32")
    for which in (_LOW, _HIGH):
        store(found, (which,), zero)
    with loop(LANES) as lane:
        store(found, (_LOW,), tirx.min(found[_LOW], extremes[(_LOW, direction, lane)]))
        store(found, (_HIGH,), tirx.max(found[_HIGH], extremes[(_HIGH, direction, lane)]))
    low, high = found[_LOW], found[_HIGH]
    store(quantization, (_SCALE, direction), tirx.Select(low < high, (high - low) / _LEVELS, tirx.const(1, "float32")))
    point = tirx.nearbyint(-low / quantization[(_SCALE, direction)])
    store(quantization, (_POINT, direction), tirx.max(zero, tirx.min(_LEVELS, point)))


def _multiply(packing: Packing, unit: Unit, gates: range, operand: Callable[[object], object]) -> None:
    """Sum the products of integers, as many at a time as are packed together, then multiply by both scales."""
    buffers, sums = unit.buffers, registers(len(gates), "int32")
    point = buffers["quantization"][(_POINT, unit.direction)].astype("int32")
    for at, gate in enumerate(gates):
        over = point * buffers["r0"][(unit.direction, gate, unit.at[-1])] if "r0" in buffers else 0
        store(sums, (at,), tirx.const(0, "int32") - over)
    with loop(-(-unit.layer.hidden // packing.numbers)) as k, unrolled(len(gates)) as g:
        state = buffers["packed"][(unit.direction, unit.sequence, k)]
        weights = buffers["r"][(unit.direction, unit.block, k, g + gates.start, unit.lane)]
        store(sums, (g,), sums[g] + packing.dot(state, weights))
    for at, gate in enumerate(gates):
        scale = buffers["quantization"][(_SCALE, unit.direction)]
        scale *= buffers["rs"][(unit.direction, gate, unit.at[-1])]
        unit.set_sum(gate, unit.sum(gate) + sums[at].astype("float32") * scale)


def _cell(packing: Packing) -> Cell:
    """Return an LSTM's cell whose products are of packed integers."""
    own = {name: partial(each, packing) for name, each in (("scratch", _scratch), ("before", _quantize))}
    return replace(CELLS["LSTM"], **own, multiply=partial(_multiply, packing))


CONVERTERS = {"com.microsoft.DynamicQuantizeLSTM": dynamic_quantize_lstm}
