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


def _q4_0(blocks: np.ndarray) -> tuple:
    """Of 18 bytes: a scale; sixteen bytes with number i in the low half and number 16 + i in the high half."""
    bytes_ = blocks[:, 2:]
    return np.concatenate([bytes_ & 15, bytes_ >> 4], 1), _half(blocks, 0), None


def _q8_0(blocks: np.ndarray) -> tuple:
    """Of 34 bytes: a scale; 32 signed bytes."""
    return blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None


def _q4_k(blocks: np.ndarray) -> tuple:
    """Of 144 bytes: a scale of the scales, one of the minimums; eight of both in six bits; 128 bytes of four bits.

    Of the twelve bytes of six-bit numbers, the low six bits of the first eight are those of the groups 0 to 3. The last
    four have the low four bits for the groups 4 to 7, whose high two are the high bits of the first eight.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], 1)
    least = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], 1)
    halves = blocks[:, 16:].reshape(-1, 4, 1, 32)  # of 64 numbers, the first 32 in the low halves
    codes = np.concatenate([halves & 15, halves >> 4], 2).reshape(-1, SUPER)
    return codes, _half(blocks, 0) * scales.astype("float32"), _half(blocks, 2) * least.astype("float32")


def _q6_k(blocks: np.ndarray) -> tuple:
    """Of 210 bytes: low four bits, high two bits, sixteen signed scales, a scale of these; codes are 32 and more.

    Of each 128 numbers, the low bits of the first 64 are in low halves of bytes, and those of the others in high
    halves; the high bits of numbers i, 32 + i, 64 + i and 96 + i are in one byte.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], 2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    codes = (low | high << 4).reshape(-1, SUPER) + np.uint8(128 - 32)
    return codes, _half(blocks, 208) * blocks[:, 192:208].view("int8").astype("float32"), None


FORMATS = {
    "Q4_0": Format(4, 32, 8, False, _q4_0),
    "Q8_0": Format(8, 32, 128, False, _q8_0),
    "Q4_K": Format(4, 32, 0, True, _q4_k),
    "Q6_K": Format(8, 16, 128, False, _q6_k),
}
"""Name of a format in the file -> how its integers are kept. Weights of other formats become float32."""
