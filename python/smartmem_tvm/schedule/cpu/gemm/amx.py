# SPDX-License-Identifier: Apache-2.0
"""AMX instructions of a CPU: eight registers of 16 rows of 64 bytes, and products of tiles of bfloat16 or of bytes.

    C[m, n] += sum_k A[m, k] * B[k // 2, n, k % 2]       A: 16 x 32, B: 16 x 16 pairs, C: 16 x 16 float32
    C[m, n] += sum_k A[m, k] * B[k // 4, n, k % 4]       A: 16 x 64, B: 16 x 16 quads, C: 16 x 16 int32

On Linux, a process has to request the registers once for all its threads. Each thread configures them for itself.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx

from ...core.nest import block, index, scratch, store

# Rows, or columns, of a tile, and bfloat16 numbers along the depth in a row of it: by definition of AMX.
SIDE, DEPTH = 16, 32
ROW_BYTES = 64  # bytes of a row of a tile, by definition of AMX
_TILES = 8  # registers, by definition of AMX
# Registers of two tiles of the left operand, and of the right one; those below hold sums. Chosen: all eight are in use.
LEFT, RIGHT = (4, 5), (6, 7)
# Numbers of a system call and of its arguments, by definition of Linux on x86-64.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def ask_for_tiles() -> tirx.Stmt:
    """Return the system call that requests the registers of Linux, for which libc has no function.

    It is cheap, and has no effect after the first time. If Linux refuses, the first AMX instruction raises SIGILL, as
    an instruction does that a processor lacks.
    """
    numbers = (_int64(each) for each in (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    return tirx.Evaluate(tirx.call_extern("int64", "syscall", *numbers))


def configuration():
    """Return scratch memory for the configuration that `configure` writes."""
    return scratch([ROW_BYTES // 4], "uint32", "tiles")


def configure(words, depth: int = SIDE) -> tirx.Stmt:
    """Return the statements that configure all registers of this thread as tiles of full size.

    Parameters
    ----------
    depth : int
        Pairs or quads along the depth in a tile of an operand: less than 16 where the whole depth is no multiple of it.
    """
    raw = np.zeros(ROW_BYTES, "uint8")
    raw[0] = 1  # the palette
    raw[16 : 16 + 2 * _TILES : 2] = ROW_BYTES
    raw[48 : 48 + _TILES] = SIDE
    for left, right in zip(LEFT, RIGHT, strict=True):
        raw[16 + 2 * left], raw[48 + right] = depth * (ROW_BYTES // SIDE), depth
    writes = [store(words, tirx.const(int(word), "uint32"), at) for at, word in enumerate(raw.view("uint32"))]
    return block(*writes, _evaluate("ldtilecfg", address(words, 0)))


def release() -> tirx.Stmt:
    """Return the release of the registers, after which a thread switch need not save them."""
    return _evaluate("tilerelease")


def zero(tile: int) -> tirx.Stmt:
    """Return ``tile = 0``."""
    return _evaluate("tilezero", _number(tile))


def load(tile: int, where, streams: bool = False, row_bytes: int = ROW_BYTES) -> tirx.Stmt:
    """Return the load of a tile; one that `streams` leaves the first-level cache to other tiles."""
    return _evaluate("tileloaddt164" if streams else "tileloadd64", _number(tile), where, _int64(row_bytes))


def multiply(total: int, left: int, right: int) -> tirx.Stmt:
    """Return ``total += left * right``."""
    return _evaluate("tdpbf16ps", _number(total), _number(left), _number(right))


def multiply_bytes(total: int, left: int, right: int) -> tirx.Stmt:
    """Return ``total += left * right`` of unsigned bytes times signed ones."""
    return _evaluate("tdpbusd", _number(total), _number(left), _number(right))


def multiply_turned_bytes(total: int, left: int, right: int) -> tirx.Stmt:
    """Return ``total += left * right`` of signed bytes times unsigned ones."""
    return _evaluate("tdpbsud", _number(total), _number(left), _number(right))


def keep(tile: int, where, row_bytes: int) -> tirx.Stmt:
    """Return the store of a tile of sums."""
    return _evaluate("tilestored64", _number(tile), where, _int64(row_bytes))


def address(buffer, *indices):
    """Return the address of an element."""
    return tirx.address_of(buffer[tuple(index(i) if isinstance(i, int) else i for i in indices)])


def whole(buffer) -> tirx.Stmt:
    """Return stores to both ends of a scratch buffer for tiles, so that TVM allocates all of it.

    TVM allocates only the range between the first and the last element that loops access. It cannot see how far a tile
    extends from its address.
    """
    ends = ([0] * len(buffer.shape), [int(each) - 1 for each in buffer.shape])
    return block(*(store(buffer, tirx.const(0, buffer.ty.dtype), *end) for end in ends))


def bfloat16_bits(vector):
    """Return the bits of 16 float32 numbers as bfloat16, rounded to the nearest, ties to even; NaN stays NaN."""
    rounded = tirx.call_llvm_pure_intrin("float16x16", "llvm.x86.avx512bf16.cvtneps2bf16.512", vector)
    return tirx.reinterpret("uint16x16", rounded)


def bits_of(value):
    """Return the bits as bfloat16 of a float32 that was widened from bfloat16.

    TVM's lowering of bfloat16 cannot reinterpret it, so the bits come from the float32; LLVM makes a plain load of it.
    """
    return (tirx.reinterpret("uint32", value) >> tirx.const(16, "uint32")).astype("uint16")


def of_bits(bits):
    """Return the float32 number of the bits of a bfloat16.

    Scratch memory holds bits, because TVM turns a bfloat16 buffer within a kernel into one of float32.
    """
    return tirx.reinterpret("float32", bits.astype("uint32") << tirx.const(16, "uint32"))


def _evaluate(name: str, *operands) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_llvm_intrin("int32", f"llvm.x86.{name}", *operands))


def _number(tile: int):
    return tirx.const(tile, "uint8")


def _int64(value: int):
    return tirx.const(value, "int64")
