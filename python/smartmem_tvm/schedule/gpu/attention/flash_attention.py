# SPDX-License-Identifier: Apache-2.0
"""Attention in float16 or bfloat16 on tensor cores: any number of keys, online softmax (FlashAttention).

    each thread block (batch, block of rows); a warp has 16 or 32 of the rows:
      load fragments of its rows                              shared memory -> registers, once
      most = a number below all scores, sum = 0, results = 0
      for each block of keys:
        wait for keys and values; barrier; start to copy those of a later block
        scores = rows @ keys                                  fragments, float32
        scores = f(scores), of rows and keys by their indices
        new = max(most, scores of the row);  shrink = exp(most - new)
        weights = exp(scores - new);  sum = sum * shrink + weights;  results *= shrink
        results += half(weights) @ values                     fragments of scores have the layout of a left operand
      out[g(i, c)] = finish(results, sum)

Scores and weights never leave registers (Dao et al., FlashAttention, Algorithm 1; Milakov and Gimelshein, Online
normalizer calculation for softmax, Algorithm 3). Folded layout operators become part of the addresses.
"""

from __future__ import annotations

from dataclasses import fields

from tvm import tirx

from ....analysis.row_chain import RowChain
from ....ir.index_map import variables
from ....ir.kernel import Kernel, Opaque
from ....ir.walk import loads
from ....target import is_cuda
from ...core.decisions import decide, declined, priced
from ..gemm.ptx import HALF
from ..gemm.staged_operand import goes_by_itself
from ..launch import GpuRule
from .flash_thread import FlashThread
from .flash_tile import WIDEST, AttentionParams, AttentionShape, AttentionTile, best_attention_tile, fits, price
from .flash_wgmma import FlashWgmmaThread
from .softmax import SoftmaxAttention, attention_of

_Plan = tuple[SoftmaxAttention, AttentionShape, AttentionTile]


class GpuMatrixAttention(GpuRule):
    """The rule for attention of halves on GPUs with matrix instructions.

    Parameters
    ----------
    params : AttentionParams, optional
        By default those of the target.
    tile : AttentionTile, optional
        By default the one that `best_attention_tile` chooses.
    """

    def __init__(self, params: AttentionParams | None = None, tile: AttentionTile | None = None):
        super().__init__(params)
        self.tile = tile

    needs = "an NVIDIA GPU of compute capability 8.0 or more"

    def runs_on(self, target) -> bool:
        """Whether the target is an NVIDIA GPU of compute capability 8.0 or more."""
        return is_cuda(target) and AttentionParams.of(target) is not None

    def params_of(self, target) -> AttentionParams:
        """Return the parameters of the target."""
        return AttentionParams.of(target)

    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel unchanged: an attention is recognised by its unfolded stages."""
        return kernel

    def plan(self, kernel: Kernel, params: AttentionParams) -> _Plan | None:
        """Return how a kernel is tiled; None if it is no 16-bit attention, or has too few rows or too long ones."""
        attention = attention_of(kernel)
        if attention is None:
            return None
        if attention.element is None:
            return declined("its numbers are no halves or bfloat16")
        objection = _objection(attention, params)
        if objection:
            return declined(objection)
        shape = _shape(attention)
        tile = self.tile or best_attention_tile(shape, params)
        facts = {each.name: int(getattr(shape, each.name)) for each in fields(shape)}
        facts["groups"] = int(params.warp_groups)
        decided = decide("gpu_matrix_attention", tile, lambda other: fits(other, shape, params), **facts)
        priced(lambda: price(decided, shape, params))
        return attention, shape, decided

    def emit(self, plan: _Plan) -> tirx.Stmt:
        """Return the whole loop nest."""
        thread = FlashWgmmaThread if plan[2].group else FlashThread
        return thread(*plan).kernel()


def takes(chain: RowChain, params: AttentionParams, shortened: bool) -> bool:
    """Whether the rule takes a chain of rows, however long they are.

    Parameters
    ----------
    shortened : bool
        Its numbers will be converted to 16 bits; otherwise they keep their types.
    """
    try:
        attention = SoftmaxAttention(chain)
    except Opaque:
        return False
    return (shortened or attention.element is not None) and not _objection(attention, params)


def _shape(attention: SoftmaxAttention) -> AttentionShape:
    chain = attention.chain
    _, keys, values = attention.operands()
    held = sum(not goes_by_itself(each, attention.element or HALF) for each in (keys, values))
    read = [load for load in loads(attention.value) if attention.key in variables(load)]
    sizes = chain.batch_count, chain.row_count, attention.keys, attention.depth_count, attention.width
    return AttentionShape(*sizes, held, len(read))


def _objection(attention: SoftmaxAttention, params: AttentionParams) -> str:
    rows = attention.chain.row_count
    if rows < params.least_rows:
        return f"{rows} rows share their keys, too few for matrix instructions"
    if max(attention.depth_count, attention.width) > WIDEST or best_attention_tile(_shape(attention), params) is None:
        return f"rows of {attention.depth_count} terms and {attention.width} results do not fit in registers"
    return ""
