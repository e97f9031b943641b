# SPDX-License-Identifier: Apache-2.0
"""Cast, CastLike and BitCast between any two types of numbers."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax, te, tirx

from smartmem_tvm.frontend.converters.narrow_floats import decode, encode
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of
from smartmem_tvm.narrow import is_integer, is_narrow, storage_of

_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def dtype_name(number: int) -> str:
    """Return the name of a type from ONNX's number; refuse types other than numbers."""
    name = str(onnx.helper.tensor_dtype_to_np_dtype(number))
    if name == "object" or name.startswith("complex"):
        raise ValueError(f"there are no kernels for {onnx.TensorProto.DataType.Name(number).lower()} numbers")
    return name


def cast(node: Node) -> relax.Expr | None:
    """Cast to a constant type; a value out of range of an integer type gets the same bits as in ONNX Runtime."""
    return _cast(node, dtype_name(node.attrs["to"]))


def cast_like(node: Node) -> relax.Expr | None:
    """Cast to the type of the second input."""
    like = node.inputs[1]
    return _cast(node, "int64" if isinstance(like.ty, relax.ShapeType) else node.type_of(1))


def _cast(node: Node, to: str) -> relax.Expr | None:
    x = node.inputs[0]
    if not isinstance(x.ty, relax.TensorType):
        return relax.const(np.array([int(size) for size in x.values], to), to) if to == "int64" else None
    mode = node.text("round_mode", "up")
    return convert(node, x, node.type_of(0), to, bool(node.attrs.get("saturate", 1)), mode)


def convert(node: Node, x: relax.Expr, dtype: str, to: str, saturate: bool = True, mode: str = "up") -> relax.Expr:
    """Convert numbers of one type to another.

    Parameters
    ----------
    x
        The numbers in their storage type (`smartmem_tvm.narrow`), like the result.
    saturate, mode
        See `narrow_floats.encode`.
    """
    if dtype == to:
        return x
    if is_narrow(dtype) and not is_integer(dtype):
        x, dtype = node.emit(decode(node, x, dtype)), "float32"
    if is_narrow(to) and not is_integer(to):
        return encode(node, node.emit(_plain(node, x, dtype, "float32")), to, saturate, mode)
    if to in _BITS:
        return _low_bits(node, x, dtype, to)
    return _plain(node, x, dtype, to)


def _low_bits(node: Node, x: relax.Expr, dtype: str, to: str) -> relax.Expr:
    """Return the lowest bits as a number; floats are rounded first, halves away from zero, as in ONNX Runtime."""
    if not is_integer(dtype) and dtype != "bool":
        x, dtype = node.emit(relax.op.astype(x, "float64")), "float64"
        half = np.nextafter(0.5, 0)  # with 0.5 itself, the largest float below 0.5 would be rounded up
        positive = relax.op.greater_equal(x, constant(0, dtype))
        x = node.emit(relax.op.add(x, relax.op.where(positive, constant(half, dtype), constant(-half, dtype))))
    x = node.emit(_plain(node, x, dtype, "int32"))
    bits = _BITS[to]
    x = relax.op.bitwise_and(x, constant(2**bits - 1, "int32"))
    if to.startswith("int"):  # 1111 is -1
        sign = constant(2 ** (bits - 1), "int32")
        x = relax.op.subtract(relax.op.bitwise_xor(x, sign), sign)
    return relax.op.astype(x, storage_of(to))


def _plain(node: Node, x: relax.Expr, dtype: str, to: str) -> relax.Expr:
    """Cast between types that kernels compute in."""
    x = x if dtype_of(x) == dtype or is_narrow(dtype) else relax.op.astype(x, dtype)
    if to == "bool":
        # NaN is not zero, but TVM's "not equal" is false for it.
        zero = relax.op.astype(relax.op.equal(x, constant(0, dtype_of(x))), "int8")
        return relax.op.equal(zero, constant(0, "int8"))
    if to == "bfloat16":
        return _to_bfloat16(node, relax.op.astype(x, "float32"))
    if is_integer(to) and not is_integer(dtype) and dtype != "bool":
        return _to_integer(node, x, to)
    return relax.op.astype(x, to) if dtype_of(x) != to else x


def _to_bfloat16(node: Node, x: relax.Expr) -> relax.Expr:
    """Round on the bits: TVM drops the rounding if the same kernel reads the number as float32 again."""

    def rounded(x: te.Tensor) -> te.Tensor:
        def at(*index):
            bits, half = tirx.reinterpret("uint32", x(*index)), tirx.const(0x7FFF, "uint32")
            up = half + ((bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32"))
            number = (bits & tirx.const(0x7FFFFFFF, "uint32")) <= tirx.const(0x7F800000, "uint32")
            bits = tirx.Select(number, bits + up, bits | tirx.const(0x400000, "uint32"))
            return tirx.reinterpret("float32", bits & tirx.const(0xFFFF0000, "uint32"))

        return te.compute(x.shape, at, name="round")

    return relax.op.astype(node.bb.emit_te(rounded, node.emit(x)), "bfloat16")


def _to_integer(node: Node, x: relax.Expr, to: str) -> relax.Expr:
    """Truncate a float; a value out of the range of `wide` becomes its smallest number, as on x86 processors.

    C leaves a conversion out of range undefined, so the result of a code generator would be arbitrary.
    """
    wide = "int32" if to in ("int8", "uint8", "int16", "uint16", "int32") else "int64"
    dtype = dtype_of(x)
    if dtype in ("float16", "bfloat16"):
        x, dtype = node.emit(relax.op.astype(x, "float32")), "float32"
    end = constant(2.0 ** (31 if wide == "int32" else 63), dtype)
    if to == "uint64":  # the upper half of its range is beyond int64
        upper = node.emit(relax.op.greater_equal(x, end))
        lowered = node.emit(relax.op.where(upper, relax.op.subtract(x, end), x))
        low = relax.op.astype(node.emit(_in_range(lowered, end, wide)), to)
        return relax.op.add(low, relax.op.where(upper, constant(2**63, to), constant(0, to)))
    return relax.op.astype(_in_range(x, end, wide), to)


def _in_range(x: relax.Expr, end: relax.Expr, wide: str) -> relax.Expr:
    inside = relax.op.logical_and(relax.op.less(x, end), relax.op.greater_equal(x, relax.op.negative(end)))
    return relax.op.astype(relax.op.where(inside, x, relax.op.negative(end)), wide)


def bit_cast(node: Node) -> relax.Expr:
    """BitCast between types of the same size."""
    to = dtype_name(node.attrs["to"])
    x, dtype = node.inputs[0], node.type_of(0)
    if is_narrow(dtype) or is_narrow(to):
        raise ValueError(f"bits of {dtype} cannot be read as {to}")
    if dtype == "bool":
        x = node.emit(relax.op.astype(x, "uint8"))
    if to == "bool":
        return relax.op.astype(x, "bool")
    kernel = lambda x: te.compute(x.shape, lambda *at: tirx.reinterpret(to, x(*at)), name="bit_cast")  # noqa: E731
    return x if dtype_of(x) == to else node.bb.emit_te(kernel, x)


CONVERTERS = {
    "BitCast": bit_cast,
    "smartmem.BitCast": bit_cast,  # of `torch_bits`
    "Cast": cast,
    "CastLike": cast_like,
}
