# SPDX-License-Identifier: Apache-2.0
"""Weights of a few bits, as ONNX Runtime packs them: they are constants and are unpacked at compile time."""

from __future__ import annotations

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of
from smartmem_tvm.ir.codes import ASKED, rows_in_bytes
from smartmem_tvm.narrow import is_integer

_ROWS_IN_BYTES = 4
"""``accuracy_level`` of MatMulNBits whose rows may be rounded to eight bits, by definition."""


def mat_mul_n_bits(node: Node) -> relax.Expr:
    """com.microsoft.MatMulNBits: blocks along the columns of the right operand have a scale and a zero point each."""
    x, packed, scales, zeros, order, bias = (node.input(at) for at in range(6))
    packed, scales, points, groups = (node.constant(at) for at in (1, 2, 3, 4))
    if any(given is not None and known is None for given, known in ((zeros, points), (order, groups))):
        raise ValueError("its zero points or g_idx are known at run time only; make them constants")
    if packed is None or scales is None:
        raise ValueError("its weights or scales are known at run time only; make them constants")
    columns, width = node.attrs["N"], node.attrs["K"]
    bits, block = node.attrs.get("bits", 4), node.attrs["block_size"]
    blocks = -(-width // block)
    codes = unpacked(packed.reshape(columns, -1), bits, blocks * block)[:, :width]
    if points is None:
        points = np.full((columns, blocks), 2 ** (bits - 1))
    elif points.dtype == np.uint8:
        points = unpacked(points.reshape(columns, -1), bits, blocks)
    points, scales = (each.reshape(columns, blocks) for each in (points, scales))
    groups, steps = _in_groups(groups, width, block, blocks)
    if steps is not None:
        codes, x = codes[:, steps], node.emit(relax.op.take(x, constant(steps, "int64"), -1, mode="fast"))
    if node.attrs.get("accuracy_level", 0) == _ROWS_IN_BYTES and steps is None:
        x = node.bb.emit_te(rows_in_bytes, x, primfunc_name_hint=f"{ASKED}_{block}_")
    product = node.emit(relax.op.matmul(x, _weight(node, codes, points, scales, groups)))
    return product if bias is None else relax.op.add(product, bias)


def _in_groups(order: np.ndarray | None, width: int, block: int, blocks: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the group of each step along the depth, and the order of steps in which groups are together.

    Parameters
    ----------
    order : array or None
        The group of each step in the file, ``g_idx``; None for blocks in a row.
    """
    usual = np.arange(width) // block
    if order is None or np.array_equal(order, usual):
        return usual, None
    if order.shape != (width,) or order.min() < 0 or order.max() >= blocks:
        raise ValueError(f"its g_idx does not give each of {width} steps one of {blocks} groups; quantize it again")
    steps = np.argsort(order, kind="stable")
    return order[steps], steps


def _weight(node: Node, codes: np.ndarray, points: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> relax.Expr:
    """Return the right operand of a product, with the scales apart from the integers.

    Parameters
    ----------
    codes : array
        Of (columns, steps along the depth).
    points, scales : array
        Of (columns, groups).
    groups : array
        The group of each step.
    """
    dtype = dtype_of(node.inputs[0])
    if points.dtype.kind == "f" or dtype != "float32":
        values = (codes.astype("float32") - points[:, groups].astype("float32")) * scales[:, groups].astype("float32")
        return constant(np.ascontiguousarray(values.T), dtype)
    centred = _centred(codes, points, groups)
    numbers = node.emit(relax.op.astype(constant(np.ascontiguousarray(centred.T), str(centred.dtype)), dtype))
    return node.emit(relax.op.multiply(numbers, _factors(node, scales.astype(dtype), groups, dtype)))


def _centred(codes: np.ndarray, points: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return codes less their zero points, (columns, steps), as int8 if they fit and as int16 otherwise."""
    same = points.min(initial=points.flat[0]) == points.max(initial=points.flat[0])
    centred = codes.astype("int16") - (points.flat[0] if same else points[:, groups]).astype("int16")
    return centred.astype("int8" if np.abs(centred).max(initial=0) < 2**7 else "int16")


def _factors(node: Node, scales: np.ndarray, groups: np.ndarray, dtype: str) -> relax.Expr:
    """Return the scale of each number, (steps, columns): repeated where groups are equally long."""
    depth, blocks = len(groups), scales.shape[1]
    block = -(-depth // blocks)
    if block * (blocks - 1) >= depth or not np.array_equal(groups, np.arange(depth) // block):
        return constant(np.ascontiguousarray(scales[:, groups].T), dtype)
    factors = node.emit(relax.op.repeat(constant(np.ascontiguousarray(scales.T), dtype), block, 0))
    if block * blocks == depth:
        return factors
    return node.emit(relax.op.strided_slice(factors, [0, 1], [0, 0], [depth, len(scales)]))


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the first `count` numbers of each row of bytes; the first number of a byte is in its lowest bits."""
    if bits not in (2, 4, 8):
        raise ValueError(f"its weights have {bits} bits, and 2, 4 and 8 are known")
    shifts = np.arange(0, 8, bits, dtype="uint8")
    return ((packed[:, :, None] >> shifts) & (2**bits - 1)).reshape(len(packed), -1)[:, :count]


# The values of the sixteen codes of MatMulBnb4 (Dettmers et al., QLoRA, appendix E; bitsandbytes for FP4).
_FP4 = np.array([0, 5.208333333e-03, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25], "float32")
_NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635)
_NF4 += (-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725)
_NF4 += (0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
_CODES = {0: np.concatenate([_FP4, -_FP4]), 1: np.array(_NF4, "float32")}


def mat_mul_bnb4(node: Node) -> relax.Expr:
    """com.microsoft.MatMulBnb4: the right operand in blocks of 4-bit codes, the high half of a byte first."""
    packed, largest = node.constant(1), node.constant(2)
    if packed is None or largest is None:
        raise ValueError("its weights or their scales are known at run time only; make them constants")
    kind, columns, width = node.attrs["quant_type"], node.attrs["N"], node.attrs["K"]
    if kind not in _CODES:
        raise ValueError(f"its quant_type is {kind}, and known are 0 (FP4) and 1 (NF4)")
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1)[: columns * width]
    scales = np.repeat(largest.reshape(-1).astype("float32"), node.attrs["block_size"])[: columns * width]
    values = (_CODES[kind][codes] * scales).reshape(columns, width)
    values = values.T if node.attrs.get("transB", 1) else values
    x = node.inputs[0]
    return relax.op.matmul(x, constant(np.ascontiguousarray(values), dtype_of(x)))


def gather_block_quantized(node: Node) -> relax.Expr:
    """com.microsoft.GatherBlockQuantized: gather rows of integers and dequantize them.

    Rows of a table that is the weight of a MatMulNBits, too, are read from that weight, so that it is stored once.
    """
    data, indices, scales, zeros = (node.input(at) for at in range(4))
    kind, rank = node.type_of(0), len(shape_of(data))
    if not is_integer(kind):
        raise ValueError(f"its data are {kind}, and known are integers of two, four and eight bits")
    axis, along = (node.attrs.get(name, usual) % rank for name, usual in (("gather_axis", 0), ("quantize_axis", 1)))
    bits, block = node.attrs.get("bits", 4) if kind == "uint8" else 8, node.attrs.get("block_size", 128)
    size, parts = shape_of(data)[axis], 8 // bits
    turned = node.emit(
        relax.op.where(_below(node, indices, 0), node.emit(relax.op.add(indices, _like(indices, size))), indices)
    )
    if node.tied:
        return _where_known(node, _taken_of_weight(node, turned, bits, block), turned, axis, size)
    places = node.emit(relax.op.floor_divide(turned, _like(indices, block))) if axis == along else turned
    taken = [_taken(node, data, turned, axis, parts), _taken(node, scales, places, axis, 1)]
    behind = along + (len(shape_of(indices)) - 1 if along > axis else 0)
    if zeros is None:
        points = constant(2 ** (bits - 1) if kind == "uint8" else 0, "int32")
    else:
        points = _taken(node, zeros, places, axis, parts)
        points = _first(node, points, len(shape_of(points)) - 1, shape_of(taken[1])[-1])
    if axis != along:
        wanted = shape_of(taken[0])[behind]
        taken[1] = _spread(node, taken[1], behind, block, wanted)
        points = points if zeros is None else _spread(node, points, behind, block, wanted)
    difference = node.emit(relax.op.subtract(astype(node, taken[0], "int32"), astype(node, points, "int32")))
    result = node.emit(relax.op.multiply(astype(node, difference, dtype_of(scales)), taken[1]))
    return _where_known(node, result, turned, axis, size)


def _taken_of_weight(node: Node, places: relax.Expr, bits: int, block: int) -> relax.Expr:
    """Return rows of the weight that `mat_mul_n_bits` makes: of the same numbers, transposed."""
    packed, scales, zeros = (node.constant(at) for at in (0, 2, 3))
    (columns, blocks), width = scales.shape, packed.shape[1] * 8 // bits
    points = np.full((columns, blocks), 2 ** (bits - 1)) if zeros is None else unpacked(zeros, bits, blocks)
    centred = _centred(unpacked(packed, bits, width), points, np.arange(width) // block)
    numbers = node.emit(relax.op.astype(constant(centred, str(centred.dtype)), "float32"))
    factors = node.emit(relax.op.repeat(node.inputs[2], block, 1))
    return node.emit(relax.op.take(node.emit(relax.op.multiply(numbers, factors)), places, 0, mode="clip"))


def _where_known(node: Node, result: relax.Expr, places: relax.Expr, axis: int, size: int) -> relax.Expr:
    """Return what was gathered along an axis, and zeros where an index is beyond it."""
    within = node.emit(relax.op.logical_and(_below(node, places, size), relax.op.logical_not(_below(node, places, 0))))
    gathered = range(axis, axis + len(shape_of(places)))
    shape = [length if at in gathered else 1 for at, length in enumerate(shape_of(result))]
    return relax.op.where(node.emit(relax.op.reshape(within, shape)), result, constant(0, dtype_of(result)))


def _like(x: relax.Expr, number: int) -> relax.Expr:
    return constant(number, dtype_of(x))


def _below(node: Node, x: relax.Expr, number: int) -> relax.Expr:
    return node.emit(relax.op.less(x, _like(x, number)))


def _taken(node: Node, x: relax.Expr, places: relax.Expr, axis: int, parts: int) -> relax.Expr:
    """Gather places of an axis and unpack each byte into its `parts` numbers, the lowest bits first."""
    found = node.emit(relax.op.take(x, places, axis, mode="clip"))
    if parts == 1:
        return found
    bits, shape = 8 // parts, shape_of(found)
    shifts = constant(np.arange(0, 8, bits), "int32")
    wide = node.emit(relax.op.reshape(astype(node, found, "int32"), (*shape, 1)))
    codes = relax.op.bitwise_and(node.emit(relax.op.right_shift(wide, shifts)), constant(2**bits - 1, "int32"))
    return node.emit(relax.op.reshape(node.emit(codes), (*shape[:-1], shape[-1] * parts)))


def _first(node: Node, x: relax.Expr, axis: int, count: int) -> relax.Expr:
    return x if shape_of(x)[axis] == count else node.emit(relax.op.strided_slice(x, [axis], [0], [count]))


def _spread(node: Node, x: relax.Expr, axis: int, block: int, count: int) -> relax.Expr:
    """Repeat the number of each block for all of its places."""
    return _first(node, node.emit(relax.op.repeat(x, block, axis)), axis, count)


CONVERTERS = {
    "com.microsoft.GatherBlockQuantized": gather_block_quantized,
    "com.microsoft.MatMulBnb4": mat_mul_bnb4,
    "com.microsoft.MatMulNBits": mat_mul_n_bits,
}
