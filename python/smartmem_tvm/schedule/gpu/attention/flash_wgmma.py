# SPDX-License-Identifier: Apache-2.0
"""A thread of an attention by warpgroups (``wgmma``, four warps): tensor cores multiply during the softmax.

    scores of block 0; weights of it
    for each later block of keys:
      begin its scores; begin to add weighted values of the block before
      wait for scores; weights of them, in registers of their own
      wait for values; results *= shrink; weights to 16 bits
    add weighted values of the last block

Each warp has 16 of the 64 rows, and keeps its rows and weights in registers, in the fragment layout of `flash_thread`;
keys and values are read from shared memory (Shah et al., FlashAttention-3, section 3.2).
"""

from __future__ import annotations

from tvm import tirx

from ...core.nest import block, index
from ..gemm import ptx
from ..gemm.mma import fragment, group_products
from .flash_thread import FlashThread
from .flash_tile import TERMS


class FlashWgmmaThread(FlashThread):
    """The statements of one thread."""

    @property
    def ahead(self) -> int:
        """One block fewer: values of a block are still read while scores of the next block are computed."""
        return max(1, self.tile.stages - 2)

    def _buffers(self) -> list:
        return [each for each in super()._buffers() if each is not self.right_fragments]

    def _through_keys(self, number) -> list[tirx.Stmt]:
        zero, last = index(0), index(self.blocks - 1)
        arrive, put = self._arrive(zero, number)
        first = [*arrive, *self._score(zero), ptx.wait_group(0), *self._value(zero), *self._weigh(zero), put]
        later = self.scope.loop(self.blocks - 1, lambda step: self._later(step + index(1), number), "step")
        loop = [later] if self.blocks > 1 else []
        return [*first, *loop, *self._add(last), ptx.wait_group(0)]

    def _later(self, step, number) -> tirx.Stmt:
        arrive, put = self._arrive(step, number)
        products = [*self._score(step), *self._add(step - index(1)), ptx.wait_group(1)]
        weigh = [one for half in range(2) for one in self._weigh_row(0, half, step)]
        fit = [one for half in range(2) for one in self._fit_results(0, half)]
        return block(*arrive, *products, *self._value(step), *weigh, ptx.wait_group(0), *fit, *self._pack(0), put)

    def _arrive(self, step, number) -> tuple[list[tirx.Stmt], tirx.Stmt | None]:
        (wait, *rest), put = super()._arrive(step, number)
        return [wait, ptx.publish(), *rest], put

    def _score(self, step) -> list[tirx.Stmt]:
        scores = [self.scores[index(n)] for n in range(self.tile.keys // 2)]
        return self._products(scores, self.left_fragments, self.keys, self.shape.deep, step, False)

    def _add(self, step) -> list[tirx.Stmt]:
        results = [self.results[index(n)] for n in range(self.shape.wide // 2)]
        return self._products(results, self.weights, self.values, self.tile.keys, step, True)

    def _products(self, sums: list, left, right, terms: int, step, add: bool) -> list[tirx.Stmt]:
        return group_products(
            sums,
            terms // TERMS,
            lambda k: fragment(left, k, ptx.LEFT),
            lambda k: right.matrix(index(0), index(k * TERMS), step),
            self.element,
            (False, not right.along_depth),
            add,
        )
