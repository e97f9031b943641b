# SPDX-License-Identifier: Apache-2.0
"""MultiplyBytes: products of dequantized bytes are computed in integers, where that is predicted to be faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tvm
from tvm import ir, relax

from ...cpu_features import has_pairs, has_quads
from ...ir.block import CONVOLUTIONS, Bindings, as_constant, edit_blocks, operator, shape_of, weight
from ...ir.packings import PAIRS, QUADS, SIGNED, UNSIGNED, Packing

_BYTES = {"int8": SIGNED, "uint8": UNSIGNED}
_WIDE = ("int16", "int32", "int64")
"""What holds any byte, and the difference of two: a byte cast to another type may be another number there."""
_LARGEST_SUM = (1 << 31) - 1
"""Of int32."""
_EXACT = 1 << 24
"""By definition of IEEE 754, each integer up to this one is a float32."""
_OFFSET = 128
"""What makes a signed byte an unsigned one."""
# Cycles for each product of floats, and with bytes besides for each result (its zero point, type and scale), all of a
# vector of 16. Assumed, then held to 21 matmuls and convolutions that take 0.1 to 3 ms on a thread of an Intel Xeon
# with AVX-512 and VNNI, 2026-11-28, and to 19 of 2 us to 1.4 ms on one with other work beside them, 2026-11-29.
_PRODUCT, _RESULT = 0.5, 2.0
# Cycles of such a vector with bytes for each step of each row. Quads of a matmul are read in place; a convolution's are
# copied into a picture with borders, from which each row has a place of its own; pairs are copied, 16 bits from 8, each
# channel of a picture once. Fitted to the 19 products above (convolutions: 1 to 11, matmuls: 0.7). Pairs: fitted to
# four matmuls, which take 0.77, 0.68, 0.62 and 0.53 of their time in floats: rows x depth x columns 784 x 144 x 64,
# 784 x 576 x 64, 784 x 24 x 144 and 196 x 384 x 1536, a thread of an AMD EPYC (Zen 3) with AVX2, 2026-11-29.
_COPIED = {"matmul": 1.1, "convolution": 5.0, "pairs": 5.0}
# Cycles of a product for each of a product of floats, by the numbers of a packing: by definition of the instructions.
# The largest of the four matmuls above takes 0.53.
_SHARE = {QUADS.numbers: 0.25, PAIRS.numbers: 0.5}
# The same of pairs that are read through windows, and cycles of a product of floats in a 3 x 3 convolution of stride 1
# by Winograd's transforms for each of a plain one, from so many pixels of the result on. Fitted to code for AVX2 on a
# thread of an AMD EPYC (Zen 4), 2026-11-30: 64, 128 and 256 channels at 56, 28 and 14 pixels take 1.33, 1.48 and 1.17
# of the time of floats, 512 at 7 pixels 0.63, and 64 filters of 7 x 7 over three channels 0.91.
_WINDOWS_SHARE, _WINOGRAD, _WINOGRAD_PIXELS = 0.65, 0.6, 14 * 14
# Rows. Chosen: a matmul of fewer is as long as its weight takes to come from memory (`CodedProduct`).
_FEW_ROWS = 16


@tvm.transform.module_pass(opt_level=0, name="smartmem.MultiplyBytes")
class MultiplyBytes:
    """Multiply bytes instead of the numbers that they stand for, and multiply the sums by both scales.

    Before::

        y = matmul((x - z) * s, w * v)          # x: bytes, w: a constant of bytes, v: a number for each column

    After::

        y = (matmul(x, w, int32) - z * sum(w)) * (s * v)

    Sums of integers are exact, so the result is closer to the exact one than a sum of floats. Signed bytes on the left
    get 128 added, and the zero point too, as processors with VNNI multiply unsigned bytes by signed ones. A
    convolution's padding is the zero point, and channels that fill no quad get further ones, whose weights are zero,
    where it is written. Without VNNI, CPUs multiply two 16-bit integers at once, and products of few rows are not
    asked.

    A depthwise convolution becomes one of bytes on all of these CPUs. `FloatProducts` adds its sums up in floats, which
    hold them exactly; what is gained is that the kernel before it stores bytes, and none multiplies by a scale at each
    tap: blocks of MobileNetV2 took 0.57 ms in place of 0.67 (an Intel Xeon with AVX-512, one thread, 2026-11-29).

    Refuses (leaves in floats) constants that have no bytes or a scale along the depth, depths of matmuls that are no
    multiple of four (of two without VNNI) or so large that a sum may leave 32 bits, zero points that are no bytes,
    convolutions in groups of several channels, and products that would not be faster. Does nothing for a CPU without
    VNNI, AVX2 or AVX-512BW, and for a GPU without instructions for bytes. On GPUs bytes keep their sign, any depth is
    taken, and depthwise convolutions stay in floats.

    Parameters
    ----------
    over_floats : callable, optional
        ``(rows, columns, depth, reads windows) -> cycles of bytes over cycles of floats`` on a GPU; None for CPUs.
    """

    def __init__(self, over_floats: Callable[[int, int, int, bool], float] | None = None):
        self.over_floats = over_floats

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        if self.over_floats is not None:
            return edit_blocks(mod, lambda block: _multiply_bytes(block, self.over_floats), leaves_unread=True)
        target = tvm.target.Target.current(allow_none=True)
        packing = None if target is None or target.kind.name != "llvm" else _packing(target)
        if packing is None:
            return mod
        return edit_blocks(mod, lambda block: _multiply_bytes(block, packing), leaves_unread=True)


def _packing(target: tvm.target.Target) -> Packing | None:
    if has_quads(target):
        return QUADS
    return PAIRS if has_pairs(target) else None


@dataclass(frozen=True, eq=False)
class _Bytes:
    """A tensor of bytes: ``(numbers - zero) * scale``."""

    numbers: ir.Expr
    scale: ir.Expr
    zero: int


def _multiply_bytes(block: Bindings, machine: Packing | Callable[[int, int, int, bool], float]) -> list[dict]:
    """Edit a block for a machine: the packing of a CPU, or the prices of a GPU."""
    decisions = []
    for var in block.order:
        name = operator(block.values[var])
        if name != "matmul" and name not in CONVOLUTIONS:
            continue
        left, right = block.values[var].args
        x, w = _dequantized(block, left), _known(block, right)
        if x is None or w is None:
            continue
        reason = _objection(var, block.values[var], w, name, machine)
        if reason is None:
            packing = machine if isinstance(machine, Packing) else None
            make = _matmul if name == "matmul" else partial(_convolution, packing)
            given = (x.numbers, x.scale, x.zero) if packing is None else _unsigned(x)
            block.edit({var: make(block.values[var], *given, w)})
        action = {"action": "kept", "reason": reason} if reason else {"action": "multiplied as bytes"}
        decisions.append({"pass": "MultiplyBytes", "operator": var.name, **action})
    return decisions


def _dequantized(block: Bindings, expr) -> _Bytes | None:
    """Return the bytes behind a tensor that is dequantized with one scale and a known zero point; else None."""
    product = _value(block, expr, "multiply")
    if product is None:
        return None
    value, scale = product.args
    cast = _value(block, value, "astype")
    if cast is None or math.prod(shape_of(scale) or (1,)) != 1:
        return None
    zero, centred = 0, _value(block, cast.args[0], "subtract")
    wide = _value(block, cast.args[0] if centred is None else centred.args[0], "astype")
    if centred is not None:
        point = centred.args[1]
        if not isinstance(point, ir.Constant) or point.value.numpy().size != 1:
            return None
        zero = int(point.value.numpy().item())
    if wide is None or _dtype(wide) not in _WIDE or shape_of(wide.args[0]) != shape_of(expr):
        return None
    low, high = _BYTES.get(_dtype(wide.args[0]), (1, 0))
    if not low <= zero <= high:
        return None
    scale = scale if not shape_of(scale) else relax.op.reshape(scale, ())
    return _Bytes(wide.args[0], scale, zero)


def _known(block: Bindings, expr) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a constant as signed bytes and their scales, which have as many dimensions; None if it is none."""
    turned = _value(block, expr, "permute_dims")
    if turned is not None:
        inner = _known(block, turned.args[0])
        axes = None if turned.attrs.axes is None else [int(axis) for axis in turned.attrs.axes]
        return None if inner is None else tuple(np.ascontiguousarray(each.transpose(axes)) for each in inner)
    product = _value(block, expr, "multiply")
    numbers, scale = map(weight, product.args) if product is not None else (None, None)
    if numbers is None or scale is None or numbers.size == 0 or numbers.shape != shape_of(expr):
        return None
    if not (SIGNED[0] <= numbers.min() and numbers.max() <= SIGNED[1]) or np.any(numbers != np.rint(numbers)):
        return None
    return numbers.astype("int8"), scale.reshape((1,) * (numbers.ndim - scale.ndim) + scale.shape)


def _value(block: Bindings, expr, name: str) -> ir.Call | None:
    value = block.values.get(expr) if isinstance(expr, ir.Var) else None
    return value if value is not None and operator(value) == name else None


def _dtype(expr) -> str:
    return str(expr.ty.dtype.dtype)


def _unsigned(x: _Bytes) -> tuple[ir.Expr, ir.Expr, int]:
    """Return unsigned bytes, their scale, and their zero point."""
    if _dtype(x.numbers) == "uint8":
        return x.numbers, x.scale, x.zero
    wide = relax.op.add(relax.op.astype(x.numbers, "int16"), relax.const(_OFFSET, "int16"))
    return relax.op.astype(wide, "uint8"), x.scale, x.zero + _OFFSET


def _objection(var, call: ir.Call, w: tuple, name: str, machine) -> str | None:
    """Return why a product stays in floats, or None."""
    packing = machine if isinstance(machine, Packing) else None
    numbers, scale = w
    result = shape_of(var)
    if result is None or _dtype(var) != "float32":
        return "its sizes are not known, or its type is not float32"
    if name == "matmul":
        depth, columns, rows = *numbers.shape[-2:], math.prod(result[:-1])
        if numbers.ndim != 2 or len(result) < 2 or scale.shape[0] != 1:
            return "its constant is no matrix with a scale for each column"
    elif (reason := _unlike_filters(call, numbers, scale)) is not None:
        return reason
    elif _is_depthwise(call, numbers) and packing is None:
        return "it is depthwise, and GPUs multiply single numbers there"
    elif _is_depthwise(call, numbers):
        exact = UNSIGNED[1] * np.abs(numbers.astype("int64")).sum(tuple(range(1, numbers.ndim))).max() <= _EXACT
        return None if exact else "floats may not hold its sums exactly"
    else:
        depth, columns = math.prod(numbers.shape[1:]), numbers.shape[0]
        rows = math.prod(result) // columns
        depth += 0 if packing is None else depth // numbers.shape[1] * _missing(numbers.shape[1], packing)
    if packing is PAIRS and rows < _FEW_ROWS:
        return f"it has fewer than {_FEW_ROWS} rows, and the processor no VNNI"
    if packing is not None and depth % packing.numbers:
        return f"its depth is no multiple of {packing.numbers}"
    along = 0 if name == "matmul" else tuple(range(1, numbers.ndim))
    if UNSIGNED[1] * np.abs(numbers.astype("int64")).sum(along).max() > _LARGEST_SUM:
        return "its sums may leave 32 bits"
    if packing is None:
        over = machine(rows, columns, depth, name != "matmul" and depth != numbers.shape[1])
        return None if over < 1 else f"price: {over:.2f} times the cycles of floats"
    over = _over_floats(call, numbers, result, (rows, columns, depth), packing)
    return None if over < 1 else f"price: {over:.2f} times the cycles of floats"


def _over_floats(
    call: ir.Call, numbers: np.ndarray, result: tuple[int, ...], sizes: tuple[int, int, int], packing: Packing
) -> float:
    """Return the cycles of a CPU's product of bytes over those of floats.

    Parameters
    ----------
    sizes : tuple of int
        Rows, columns, and depth with the channels that fill the last packed numbers.
    """
    rows, columns, depth = sizes
    floats, filled = (rows * each * _PRODUCT for each in (numbers.size, columns * depth))
    if operator(call) == "matmul":
        read, copied = rows * depth, _COPIED["pairs" if packing is PAIRS else "matmul"]
    else:
        picture = shape_of(call.args[0])
        channels = picture[1] + _missing(picture[1], packing)
        read, copied = math.prod(picture) // picture[1] * channels, _COPIED["convolution"]
        if packing is PAIRS and depth > channels:
            filled *= _WINDOWS_SHARE / _SHARE[PAIRS.numbers]
            floats *= _WINOGRAD if _has_transforms(call, numbers, result) else 1
    return (filled * _SHARE[packing.numbers] + rows * columns * _RESULT + read * copied) / floats


def _has_transforms(call: ir.Call, numbers: np.ndarray, result: tuple[int, ...]) -> bool:
    """Whether a convolution of floats is one for Winograd's transforms, with enough pixels."""
    steps = {int(each) for name in ("strides", "dilation") for each in getattr(call.attrs, name)}
    return numbers.shape[2:] == (3, 3) and steps == {1} and math.prod(result[2:]) >= _WINOGRAD_PIXELS


def _unlike_filters(call: ir.Call, numbers: np.ndarray, scale: np.ndarray) -> str | None:
    """Return why the constant of a convolution is no filters with a scale each, or None."""
    if not str(call.attrs.data_layout).startswith("NC") or not str(call.attrs.kernel_layout).startswith("OI"):
        return "it has another layout"
    if scale.size != scale.shape[0]:
        return "its constant has no scale for each filter"
    if int(call.attrs.groups) != 1 and not _is_depthwise(call, numbers):
        return "it has groups of several channels"
    return None


def _is_depthwise(call: ir.Call, numbers: np.ndarray) -> bool:
    """Whether each filter sees one channel, and there are several."""
    return numbers.shape[1] == 1 and int(call.attrs.groups) > 1


def _matmul(call: ir.Call, x: ir.Expr, x_scale: ir.Expr, zero: int, w: tuple) -> ir.Call:
    numbers, scale = w
    sums = relax.op.matmul(x, as_constant(numbers), out_dtype="int32")
    over = zero * numbers.sum(0, dtype="int32")
    return _scaled(sums, over, x_scale, scale.reshape(-1) if scale.size > 1 else scale.reshape(()))


def _missing(channels: int, packing: Packing) -> int:
    """Return how many channels fill the last packed numbers of a picture."""
    return -channels % packing.numbers


def _convolution(packing: Packing | None, call: ir.Call, x: ir.Expr, x_scale: ir.Expr, zero: int, w: tuple) -> ir.Call:
    numbers, scale = w
    single = packing is None or _is_depthwise(call, numbers)
    more = 0 if single else _missing(numbers.shape[1], packing)  # channels whose weights are zero
    attrs, rank = call.attrs, numbers.ndim - 2
    strides, dilation, padding = ([int(each) for each in getattr(attrs, n)] for n in ("strides", "dilation", "padding"))
    before, after = (padding * 2 if len(padding) == rank else padding)[:rank], (padding * 2)[rank : 2 * rank]
    if any(padding) or more:
        widths = [0, 0, 0, more, *(each for both in zip(before, after, strict=True) for each in both)]
        x = relax.op.nn.pad(x, widths, pad_value=zero)
    make = getattr(relax.op.nn, operator(call).removeprefix("nn."))
    kind = {"data_layout": str(attrs.data_layout), "kernel_layout": str(attrs.kernel_layout), "out_dtype": "int32"}
    filled = np.pad(numbers, [(0, 0), (0, more)] + [(0, 0)] * rank)
    sums = make(x, as_constant(filled), strides, [0] * (2 * rank), dilation, int(attrs.groups), **kind)
    across = (-1, *(1,) * rank)
    over = zero * numbers.reshape(len(numbers), -1).sum(1, dtype="int32").reshape(across)
    return _scaled(sums, over, x_scale, scale.reshape(across) if scale.size > 1 else scale.reshape(()))


def _scaled(sums: ir.Expr, over: np.ndarray, x_scale: ir.Expr, scale: np.ndarray) -> ir.Call:
    sums = relax.op.subtract(sums, as_constant(over.astype("int32"))) if np.any(over) else sums
    known = weight(x_scale)
    both = relax.op.multiply(x_scale, as_constant(scale)) if known is None else as_constant(known * scale)
    return relax.op.multiply(relax.op.astype(sums, "float32"), both)
