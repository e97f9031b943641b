# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms as products with a constant matrix."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax, te

from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

# Elements of a matrix that a model can hold and multiply by: transforms of up to about 2000 complex numbers.
_LARGEST = 2**24


def dft(node: Node) -> relax.Expr:
    """DFT along any axis but the last, of real or complex numbers, forward or inverse, one-sided or not.

    The axis and the pair of real and imaginary part are one axis of the product ``x @ matrix``.
    """
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    axis, inverse, onesided = _axis(node), bool(node.attrs.get("inverse", 0)), bool(node.attrs.get("onesided", 0))
    size, parts = shape[axis], shape[-1]
    length = _whole(node, 1, "dft_length")
    if length is None:
        length = 2 * (size - 1) if inverse and onesided else size
    matrix = _matrix(size, parts, length, inverse, onesided, dtype_of(x))
    others = [n for n in range(len(shape) - 1) if n != axis]
    order = [*others, axis, len(shape) - 1]
    rows = [shape[n] for n in others]
    flat = node.emit(relax.op.reshape(node.emit(relax.op.permute_dims(x, order)), [prod(rows), size * parts]))
    result = node.emit(relax.op.matmul(flat, constant(matrix.reshape(size * parts, -1), dtype_of(x))))
    result = node.emit(relax.op.reshape(result, [*rows, *matrix.shape[2:]]))
    return relax.op.permute_dims(result, [order.index(n) for n in range(len(shape))])


def stft(node: Node) -> relax.Expr:
    """STFT: overlapping frames of the signal, then one product with the transform, scaled by a constant window.

    A signal [batch, length] is real, as in ONNX Runtime; ONNX specifies [batch, length, 1 or 2].
    """
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if len(shape) == 2:
        x, shape = node.emit(relax.op.expand_dims(x, 2)), [*shape, 1]
    batch, signal, parts = shape
    step, length, window = _whole(node, 1, "frame_step"), _whole(node, 3, "frame_length"), node.input(2)
    if step is None or step < 1:
        raise ValueError("its frame_step is no positive number")
    if length is None:
        length = signal if window is None else shape_of(window)[0]
    if length > signal:
        raise ValueError(f"its frames of {length} are longer than the signal of {signal}")
    frames = (signal - length) // step + 1
    matrix = _matrix(length, parts, length, False, bool(node.attrs.get("onesided", 1)), dtype_of(x))
    known = node.constant(2)
    if known is not None:
        matrix *= known.reshape(length, 1, 1, 1).astype(matrix.dtype)
    framed = node.emit(node.bb.call_te(_framed, x, frames, length, step, primfunc_name_hint="frames"))
    if window is not None and known is None:
        framed = node.emit(relax.op.multiply(framed, node.emit(relax.op.reshape(window, [length, 1]))))
    flat = node.emit(relax.op.reshape(framed, [batch * frames, length * parts]))
    result = node.emit(relax.op.matmul(flat, constant(matrix.reshape(length * parts, -1), dtype_of(x))))
    return relax.op.reshape(result, [batch, frames, *matrix.shape[2:]])


def _framed(x: te.Tensor, frames: int, length: int, step: int) -> te.Tensor:
    """Return overlapping frames [batch, frames, length, parts] of a signal [batch, samples, parts]."""
    shape = (x.shape[0], frames, length, x.shape[2])
    return te.compute(shape, lambda batch, frame, place, part: x[batch, frame * step + place, part], name="frames")


def _axis(node: Node) -> int:
    """Return the axis, which is an attribute before opset 20."""
    rank = len(shape_of(node.inputs[0]))
    axis = _whole(node, 2, "axis") if node.opset >= 20 else node.attrs.get("axis", 1)
    axis = -2 if axis is None else axis
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise ValueError(f"its axis {axis} is none of a signal of rank {rank} (the last one holds the complex parts)")
    return axis % rank


def _whole(node: Node, position: int, name: str) -> int | None:
    """Return an input that is one number, None if it is omitted."""
    if node.input(position) is None:
        return None
    value = node.constant(position)
    if value is None:
        raise ValueError(f"its {name} is known only at run time; make it an initializer")
    return int(value.reshape(-1)[0])


def _matrix(size: int, parts: int, length: int, inverse: bool, onesided: bool, dtype: str) -> np.ndarray:
    """Return the transform as an array [size, parts of a number, results, parts of a result].

    Numbers beyond `length` are ignored, missing ones are zero. A one-sided inverse transform gets half of the spectrum:
    the other half is its mirror image, and the results are real.
    """
    if parts not in (1, 2):
        raise ValueError(f"its last axis has {parts} elements, not the 1 or 2 parts of a number")
    if length < 1:
        raise ValueError(f"its dft_length is {length}, not a positive number")
    if onesided and not inverse and parts == 2:
        raise ValueError("onesided=1 is for real signals, or for the inverse")
    results = length // 2 + 1 if onesided and not inverse else length
    if size * parts * results * 2 > _LARGEST:
        raise ValueError(f"a transform of {length} numbers is too long to be a product with a matrix")
    places, known = np.arange(size), length // 2 + 1 if onesided and inverse else length
    angle = 2 * np.pi / length * (np.outer(places, np.arange(results)) % length)
    turn = np.exp((1j if inverse else -1j) * angle) / (length if inverse else 1)
    turn[places >= known] = 0
    if onesided and inverse:
        mirrored = (places > 0) & (2 * places < length)
        turn[mirrored] *= 2
        return np.stack([turn.real, -turn.imag], 1)[:, :parts, :, None].astype(dtype)
    of_real = np.stack([turn.real, turn.imag], -1)
    of_imaginary = np.stack([-turn.imag, turn.real], -1)
    return np.stack([of_real, of_imaginary], 1)[:, :parts].astype(dtype)


CONVERTERS = {"DFT": dft, "STFT": stft}
