# SPDX-License-Identifier: Apache-2.0
"""Weights of GGUF files: their blocks of bytes as codes, scales and minimums, or as floats.

    weight[n, k] = (code[n, k] - zero) * scale[n, k // group] - minimum[n, k // group]

Sources: ggml's description of its block formats (ggml-quants), and the package `gguf`, whose `quants.dequantize` gives
the same numbers to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

SUPER = 256
"""Numbers of a super-block of the formats with a K, by definition."""
_MIDDLE = 128
"""The code of eight bits that stands for zero: what ONNX Runtime takes where no zero point is given."""


@dataclass(frozen=True)
class Coded:
    """Rows of a weight.

    Attributes
    ----------
    codes : array of uint8
        Of (rows, depth), of 4 or 8 bits as `Format` says.
    scales : array of float32
        Of (rows, groups).
    minimums : array of float32 or None
        Of (rows, groups); None for a format without.
    """

    codes: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None

    def rows(self, order: np.ndarray | None) -> Coded:
        """Return the rows in another order; None for this one."""
        if order is None:
            return self
        least = None if self.minimums is None else self.minimums[order]
        return replace(self, codes=self.codes[order], scales=self.scales[order], minimums=least)

    def floats(self, zero: int) -> np.ndarray:
        """Return the weight in float32."""
        group = self.codes.shape[1] // self.scales.shape[1]
        whole = (self.codes.astype("float32") - np.float32(zero)).reshape(*self.scales.shape, group)
        whole = whole * self.scales[..., None]
        whole = whole if self.minimums is None else whole - self.minimums[..., None]
        return whole.reshape(self.codes.shape)


@dataclass(frozen=True)
class Format:
    """A format whose integers stay integers.

    Attributes
    ----------
    bits : int
        Of a code in a model: 4 or 8.
    group : int
        Numbers that share a scale.
    zero : int
        The code of the number zero.
    minimums : bool
        Whether each group has one.
    unpack : callable
        (blocks of bytes) -> codes of (blocks, numbers), scales and minimums of (blocks, groups).
    """

    bits: int
    group: int
    zero: int
    minimums: bool
    unpack: Callable[[np.ndarray], tuple]

    def coded(self, blocks: np.ndarray, rows: int) -> Coded:
        """Return the codes of a weight from its blocks, (blocks, bytes), row by row."""
        return Coded(*(None if each is None else each.reshape(rows, -1) for each in self.unpack(blocks)))


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes of (rows, depth) in bytes; of four bits the first of two is in the low half."""
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4) if bits == 4 else codes


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 number at a byte of each block, as (blocks, 1) of float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype("float32")


def _nibbles(bytes_: np.ndarray, run: int) -> np.ndarray:
    """Return the numbers of four bits: of each run of bytes, first those of the low halves, then of the high ones."""
    return _fields(bytes_, run, (0, 4), 15)


def _fields(bytes_: np.ndarray, run: int, shifts: tuple[int, ...], mask: int) -> np.ndarray:
    """Return the numbers of a few bits in bytes: of each run of bytes, those of the first shift, of the next, ..."""
    runs = bytes_.reshape(len(bytes_), -1, 1, run) >> np.array(shifts, "uint8").reshape(1, 1, -1, 1)
    return (runs & np.uint8(mask)).reshape(len(bytes_), -1)


def _bits(bytes_: np.ndarray) -> np.ndarray:
    """Return the bits of bytes, the lowest first."""
    return np.unpackbits(bytes_, axis=1, bitorder="little")


def _signed(numbers: np.ndarray, zero: int = 0) -> np.ndarray:
    """Return codes of eight bits, whose zero is 128, of numbers with another zero."""
    return (numbers.astype("int16") + (_MIDDLE - zero)).astype("uint8")


def _q4_0(blocks: np.ndarray) -> tuple:
    """Of 18 bytes: a scale; sixteen bytes with number i in the low half and number 16 + i in the high half."""
    return _nibbles(blocks[:, 2:], 16), _half(blocks, 0), None


def _q4_1(blocks: np.ndarray) -> tuple:
    """Of 20 bytes: a scale, what is added to each number, and numbers as those of Q4_0."""
    return _nibbles(blocks[:, 4:], 16), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> tuple:
    """Of 22 bytes: a scale; the fifth bits of 32 numbers; numbers as those of Q4_0."""
    return _signed(_nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4, 16), _half(blocks, 0), None


def _q5_1(blocks: np.ndarray) -> tuple:
    """Of 24 bytes: a scale, what is added to each number, the fifth bits, and numbers as those of Q4_0."""
    numbers = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return _signed(numbers), _half(blocks, 0), -_half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> tuple:
    """Of 34 bytes: a scale; 32 signed bytes."""
    return blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None


def _q2_k(blocks: np.ndarray) -> tuple:
    """Of 84 bytes: sixteen scales and minimums of four bits; 64 bytes of two bits; a scale of both."""
    scales, least = blocks[:, :16] & 15, blocks[:, :16] >> 4
    numbers = _fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 3)
    return numbers, _half(blocks, 80) * scales.astype("float32"), _half(blocks, 82) * least.astype("float32")


def _q3_k(blocks: np.ndarray) -> tuple:
    """Of 110 bytes: third bits, four is subtracted where one is 0; 64 bytes of two bits; sixteen scales; their scale.

    Of the twelve bytes of six-bit scales, the first eight have the low four bits, and the others the high two.
    """
    third = _fields(blocks[:, :32], 32, tuple(range(8)), 1)
    numbers = _fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) + (third << 2)
    scales = _nibbles(blocks[:, 96:104], 8) | _fields(blocks[:, 104:108], 4, (0, 2, 4, 6), 3) << 4
    return numbers + np.uint8(8 - 4), _half(blocks, 108) * (scales.astype("float32") - 32), None


def _six_bits(bytes_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eight scales and eight minimums of six bits in twelve bytes.

    The low six bits of the first eight bytes are those of the groups 0 to 3. The last four have the low four bits for
    the groups 4 to 7, whose high two are the high bits of the first eight.
    """
    first, second, third = bytes_[:, :4], bytes_[:, 4:8], bytes_[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], 1)
    least = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], 1)
    return scales.astype("float32"), least.astype("float32")


def _q4_k(blocks: np.ndarray) -> tuple:
    """Of 144 bytes: a scale of the scales, one of the minimums; eight of both in six bits; 128 bytes of four bits."""
    scales, least = _six_bits(blocks[:, 4:16])
    return _nibbles(blocks[:, 16:], 32), _half(blocks, 0) * scales, _half(blocks, 2) * least


def _q5_k(blocks: np.ndarray) -> tuple:
    """Of 176 bytes: as Q4_K, with 32 bytes of fifth bits before the numbers, a bit for each of eight groups."""
    scales, least = _six_bits(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 48:], 32) | _fields(blocks[:, 16:48], 32, tuple(range(8)), 1) << 4
    return _signed(numbers), _half(blocks, 0) * scales, _half(blocks, 2) * least


def _q6_k(blocks: np.ndarray) -> tuple:
    """Of 210 bytes: low four bits, high two bits, sixteen signed scales, a scale of these; codes are 32 and more.

    Of each 128 numbers, the low bits of the first 64 are in low halves of bytes, and those of the others in high
    halves; the high bits of numbers i, 32 + i, 64 + i and 96 + i are in one byte.
    """
    numbers = _nibbles(blocks[:, :128], 64) | _fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << 4
    return _signed(numbers, 32), _half(blocks, 208) * blocks[:, 192:208].view("int8").astype("float32"), None


def _iq4_nl(blocks: np.ndarray) -> tuple:
    """Of 18 bytes: a scale; sixteen bytes as those of Q4_0, whose numbers are places of a table."""
    return _signed(_UNEVEN[_nibbles(blocks[:, 2:], 16)]), _half(blocks, 0), None


def _iq4_xs(blocks: np.ndarray) -> tuple:
    """Of 136 bytes: a scale of the scales; high two bits of eight scales, low four bits; numbers as of IQ4_NL."""
    high = _bits(blocks[:, 2:4]).reshape(len(blocks), 8, 2)
    scales = _fields(blocks[:, 4:8], 1, (0, 4), 15) | high[..., 0] << 4 | high[..., 1] << 5
    numbers = _signed(_UNEVEN[_nibbles(blocks[:, 8:], 16)])
    return numbers, _half(blocks, 0) * (scales.astype("float32") - 32), None


def _mxfp4(blocks: np.ndarray) -> tuple:
    """Of 17 bytes: the exponent of a scale; sixteen bytes as those of Q4_0, whose numbers are small floats, doubled."""
    exponent = blocks[:, :1].astype("int32")
    return _signed(_SMALL_FLOATS[_nibbles(blocks[:, 1:], 16)]), np.ldexp(np.float32(1), exponent - 128), None


def _tq2_0(blocks: np.ndarray) -> tuple:
    """Of 66 bytes: 64 bytes of two bits, whose numbers are -1, 0 and 1; a scale."""
    return _fields(blocks[:, :64], 32, (0, 2, 4, 6), 3) + np.uint8(8 - 1), _half(blocks, 64), None


_UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "int8")
"""Numbers of the formats IQ4, by definition."""
_SMALL_FLOATS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], "int8")
"""Twice the numbers of a float of four bits with two bits of exponent, by definition."""
FORMATS = {
    "Q4_0": Format(4, 32, 8, False, _q4_0),
    "Q4_1": Format(4, 32, 0, True, _q4_1),
    "Q5_0": Format(8, 32, _MIDDLE, False, _q5_0),
    "Q5_1": Format(8, 32, _MIDDLE, True, _q5_1),
    "Q8_0": Format(8, 32, _MIDDLE, False, _q8_0),
    "Q2_K": Format(4, 16, 0, True, _q2_k),
    "Q3_K": Format(4, 16, 8, False, _q3_k),
    "Q4_K": Format(4, 32, 0, True, _q4_k),
    "Q5_K": Format(8, 32, _MIDDLE, True, _q5_k),
    "Q6_K": Format(8, 16, _MIDDLE, False, _q6_k),
    "IQ4_NL": Format(8, 32, _MIDDLE, False, _iq4_nl),
    "IQ4_XS": Format(8, 32, _MIDDLE, False, _iq4_xs),
    "MXFP4": Format(8, 32, _MIDDLE, False, _mxfp4),
    "TQ2_0": Format(4, SUPER, 8, False, _tq2_0),
}
"""Name of a format in the file -> how its integers are kept. Weights of other formats become float32."""
