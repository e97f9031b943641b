# SPDX-License-Identifier: Apache-2.0
"""The loops along the depth of a tile: fused, one for each iterator, or over windows in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from ...core.nest import SERIAL, Scope, index
from ..prefetch import Prefetch, in_pieces
from .gemm import DepthPart
from .operands import DepthStep


class Depth(Protocol):
    """The loops along the depth of a tile."""

    def steps(
        self, add: Callable[[DepthStep], tirx.Stmt], part: DepthPart | None, prefetch: Prefetch | None
    ) -> tirx.Stmt:
        """Return ``add(step)`` for each step of a part, or of all; `prefetch` returns the prefetches before some."""


@dataclass(frozen=True, eq=False)
class FusedDepth:
    """One loop over all steps, of which `unroll` at a time are unrolled."""

    scope: Scope
    depth: int
    unroll: int

    def steps(
        self, add: Callable[[DepthStep], tirx.Stmt], part: DepthPart | None, prefetch: Prefetch | None
    ) -> tirx.Stmt:
        """Return the loop."""
        first, length = (index(0), self.depth) if part is None else (part.first, part.length)
        return in_pieces(
            self.scope, length, self.unroll, lambda k: add(DepthStep(self.scope.simplify(first + k))), prefetch
        )


@dataclass(frozen=True, eq=False)
class EndingDepth:
    """One loop over the first steps, whose number is known in a call; without parts and prefetches."""

    scope: Scope
    depth: int
    end: object

    def steps(
        self, add: Callable[[DepthStep], tirx.Stmt], _part: DepthPart | None, _prefetch: Prefetch | None
    ) -> tirx.Stmt:
        """Return the loop."""
        return self.scope.loop(self.end, lambda k: add(DepthStep(k)), "k", most=self.depth)


@dataclass(frozen=True, eq=False)
class NestedDepth:
    """A loop for each iterator of the depth, of the kind that `kind` says; without parts and prefetches."""

    scope: Scope
    vars_: Sequence
    extents: Mapping
    kind: Callable = lambda var: SERIAL

    def steps(
        self, add: Callable[[DepthStep], tirx.Stmt], _part: DepthPart | None, _prefetch: Prefetch | None
    ) -> tirx.Stmt:
        """Return the loops."""
        return self.scope.nest(self.vars_, self.extents, lambda point: add(DepthStep(None, point)), "k", self.kind)


@dataclass(frozen=True, eq=False)
class WalkedDepth:
    """One loop for each iterator of the depth, so that no index is divided.

    Attributes
    ----------
    vars_ : sequence of tirx.Var
        Iterators of the depth.
    extents : mapping
        Their extents.
    depth : int
        All steps.
    unroll : int
        Steps of the innermost iterator that are unrolled.
    """

    scope: Scope
    vars_: Sequence
    extents: Mapping
    depth: int
    unroll: int

    def steps(
        self, add: Callable[[DepthStep], tirx.Stmt], part: DepthPart | None, prefetch: Prefetch | None
    ) -> tirx.Stmt:
        """Return the loops; a part of the depth is some iterations of the outermost one."""
        first, count = (index(0), self.depth) if part is None else (part.first, part.length)
        inner = self.depth // self.extents[self.vars_[0]]
        start = self.scope.index(tirx.floordiv(first, index(inner)))

        def nest(level: int, before, point: dict) -> tirx.Stmt:
            """Return the loops from `level` on; `before` counts the iterations of the outer ones that are done."""
            var = self.vars_[level]
            total = self.extents[var] if level else count // inner

            def place(v) -> tuple:
                return before * index(total) + v, {**point, var: v if level else self.scope.index(start + v)}

            if level < len(self.vars_) - 1:
                return self.scope.loop(total, lambda v: nest(level + 1, *place(v)), f"k{level}")

            def step(v) -> tirx.Stmt:
                done, at = place(v)
                return add(DepthStep(self.scope.simplify(first + done), at))

            return in_pieces(self.scope, total, self.unroll, step, prefetch, before * index(total // self.unroll))

        return nest(0, index(0), {})
