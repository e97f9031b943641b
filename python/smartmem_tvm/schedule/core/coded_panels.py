# SPDX-License-Identifier: Apache-2.0
"""A weight in panels of codes, as `PackCodes` writes it, found in the operand of a product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...ir.codes import IN_WORD, Codes, bits_of, codes_of
from ...ir.walk import collect
from .nest import fresh, index


@dataclass(frozen=True, eq=False)
class Panels:
    """A weight in panels.

    Attributes
    ----------
    words, scales : buffer
        Codes as (panel, group, step or word, column), and scales as (panel, group, column).
    zeros : buffer or None
        Zero points as (panel, group, column); None if all of them are `zero`.
    zero : int
        The zero point of all groups.
    bits : int
        Bits of a code.
    in_word : int
        Codes in an element of `words`, of as many steps along the depth.
    """

    words: object
    scales: object
    zeros: object
    zero: int
    bits: int
    in_word: int

    @property
    def panels(self) -> int:
        """Number of panels."""
        return int(self.words.shape[0])

    @property
    def groups(self) -> int:
        """Number of groups along the depth."""
        return int(self.words.shape[1])

    @property
    def group(self) -> int:
        """Steps of a group, with those that only pad."""
        return int(self.words.shape[2]) * self.in_word

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return int(self.words.shape[3])

    @property
    def bytes(self) -> int:
        """Bytes of all constants."""
        per_group = self.scales.dtype.itemsize + (0 if self.zeros is None else self.zeros.dtype.itemsize)
        return self.panels * self.groups * self.width * (self.group * self.bits // 8 + per_group)

    def read_by(self, operand: Callable) -> bool:
        """Whether ``operand(column, step)`` reads its place of the panels, for each column and step."""
        analyzer = sym.Analyzer()
        p, j, g, k = map(fresh, "pjgk")
        for var, extent in ((p, self.panels), (j, self.width), (g, self.groups), (k, self.group)):
            analyzer.bind(var, ir.Range(index(0), index(extent)))
        group = index(0) if self.groups == 1 else g
        codes = codes_of(operand(p * index(self.width) + j, group * index(self.group) + k))
        step = tirx.floordiv(k, index(self.in_word)) if self.in_word > 1 else k
        wanted = {codes.load: (p, group, step, j), codes.scale: (p, group, j)}
        return all(
            analyzer.can_prove_equal(have, want)
            for load, place in wanted.items()
            for have, want in zip(load.indices, place, strict=True)
        )


def panels_of(operand) -> Panels | None:
    """Return the panels that an operand of a product reads, or None if it reads none."""
    codes = codes_of(operand)
    if codes is None or len(codes.load.source.shape) != 4 or len(codes.scale.source.shape) != 3:
        return None
    return _panels(codes)


def _panels(codes: Codes) -> Panels | None:
    zero, zeros = 0, None
    if isinstance(codes.value, tirx.Sub):
        point = codes.value.b
        found = collect(point, ir.TensorLoad)
        if not found and not isinstance(point, tirx.IntImm):
            return None
        zero, zeros = (0, found[0].source) if found else (int(point), None)
    return Panels(codes.load.source, codes.scale.source, zeros, zero, *bits_of(codes))


def group_of(scale: ir.TensorLoad, depth, deep: int) -> int | None:
    """Return the steps along the depth that share a scale; None if they are no groups of whole words."""
    divided = [each for place in scale.indices for each in collect(place, tirx.FloorDiv) if each.a.same_as(depth)]
    uses = [var for place in scale.indices for var in collect(place, ir.Var) if var.same_as(depth)]
    if not uses:
        return deep
    if len(divided) != 1 or len(uses) != 1 or not isinstance(divided[0].b, tirx.IntImm):
        return None
    group = int(divided[0].b)
    return group if group % IN_WORD == 0 else None
