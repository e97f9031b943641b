# SPDX-License-Identifier: Apache-2.0
"""How thread blocks share the keys of an attention of few rows, as data, and the choice of a way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from ....target import Limits

# Threads of a thread block, the first that are able: 128 with 32 keys of 64 numbers, and 256 with 128 of them, took
# least on an H200 (2026-11-29, 256 and 2,048 keys, 32 query and 8 key heads).
_THREADS = (128, 256, 512, 64, 32)
# Threads along the depth of a key. Measured in the same runs: four took 2.5 us and eight 2.6. Others are candidates.
_LANES = (4, 8, 2, 1)
_KEYS = (32, 64, 128)  # keys of a part. Chosen: candidates; a thread then has its numbers in registers
# Parts of a cache, groups of rows, if they can be that few. Measured in the same runs: 64 parts of 2,048 keys took 3.9
# and 3.6 us in both launches, 16 parts 4.4 and 1.8.
_PARTS = 16
# Numbers of a thread of its keys, and of its values. Measured in the same runs: 64 instead of 32 took 0.3 us more.
_NUMBERS = 32
_ROWS = 16  # rows that share keys, at most. Chosen: more of them are for tiles of rows
_SUMS = 64  # sums of a thread, of scores or of results, at most. Chosen: half of 128 registers
_WIDEST = 256  # numbers of a key or of a value, at most. Chosen: as in attention by blocks of keys
VECTOR_BYTES = 16
"""Bytes of the widest load, by definition of CUDA."""


@dataclass(frozen=True)
class KeyShape:
    """The sizes of an attention.

    Attributes
    ----------
    heads : int
        Key heads, of all sequences.
    group : int
        Rows that read the keys of one: query heads times tokens.
    rows : int
        Tokens.
    keys, depth, width : int
        Rows of the cache, numbers of a key, and of a value.
    bytes : int
        Bytes of a number in the cache.
    key_run, value_run : int
        Neighbouring numbers of a key, and of a value, that one load may have.
    """

    heads: int
    group: int
    rows: int
    keys: int
    depth: int
    width: int
    bytes: int
    key_run: int
    value_run: int


@dataclass(frozen=True)
class KeyTile:
    """How a thread block works on its part.

    Attributes
    ----------
    rows : int
        Rows of a thread block: all that share a key head, or a part of them.
    keys : int
        Keys of a part.
    threads : int
    lanes : int
        Threads that share the depth of a key.
    """

    rows: int
    keys: int
    threads: int
    lanes: int

    def parts(self, shape: KeyShape) -> int:
        """Return the parts of the cache."""
        return -(-shape.keys // self.keys)

    @property
    def keys_at_once(self) -> int:
        """Keys whose depth all threads together have."""
        return self.threads // self.lanes

    @property
    def own_keys(self) -> int:
        """Keys of a thread."""
        return self.keys // self.keys_at_once

    def units(self, shape: KeyShape) -> int:
        """Return the vectors of each key that a thread multiplies."""
        return shape.depth // (shape.key_run * self.lanes)

    def key_numbers(self, shape: KeyShape) -> int:
        """Return the numbers of keys in a thread's registers."""
        return self.own_keys * self.units(shape) * shape.key_run

    def slices(self, shape: KeyShape) -> int:
        """Return the parts of the keys whose values different threads add up."""
        return min(self.keys, self.threads * shape.value_run // shape.width)

    def own_values(self, shape: KeyShape) -> int:
        """Return the values of which a thread has some columns."""
        return -(-self.keys // self.slices(shape))

    def value_numbers(self, shape: KeyShape) -> int:
        """Return the numbers of values in a thread's registers."""
        return self.own_values(shape) * shape.value_run

    @property
    def sharing(self) -> int:
        """Threads that share the scores of a row."""
        return min(self.keys, self.threads // self.rows)

    @property
    def scores_each(self) -> int:
        """Scores of such a thread."""
        return -(-self.keys // self.sharing)

    def shared_bytes(self, shape: KeyShape) -> int:
        """Return the shared memory of a thread block."""
        numbers = self.rows * (shape.depth + (1 + self.lanes) * self.keys + self.sharing)
        return 4 * (numbers + self.slices(shape) * self.rows * shape.width)


def able(tile: KeyTile, shape: KeyShape, limits: Limits) -> bool:
    """Whether a tile computes an attention within the limits of a target."""
    if shape.group % tile.rows or tile.threads % tile.lanes or tile.keys % (tile.threads // tile.lanes):
        return False
    if shape.depth % (shape.key_run * tile.lanes) or tile.rows > tile.threads:
        return False
    if tile.rows * max(shape.value_run, tile.own_keys) > _SUMS:
        return False
    if tile.threads > limits.work_group or tile.threads * shape.value_run < shape.width:
        return False
    numbers = max(tile.key_numbers(shape), tile.value_numbers(shape))
    return numbers <= _NUMBERS and tile.shared_bytes(shape) <= limits.shared_bytes


def key_tile(shape: KeyShape, limits: Limits) -> KeyTile | None:
    """Return the tile for a shape, or None if no candidate can be used: few parts, and small ones."""
    if max(shape.depth, shape.width) > _WIDEST or shape.group > _ROWS:
        return None
    for rows in (each for each in range(shape.group, 0, -1) if shape.group % each == 0):
        every = (KeyTile(rows, *each) for each in product(_KEYS, _THREADS, _LANES))
        found = [each for each in every if able(each, shape, limits)]
        few = [each for each in found if each.parts(shape) <= _PARTS]
        if found:
            return few[0] if few else next(each for each in found if each.keys == found[-1].keys)
    return None
