# SPDX-License-Identifier: Apache-2.0
"""Attention of few rows over a cache: thread blocks share its keys (flash-decoding).

    each thread block (heads of one key head, part of the keys), if there are keys before the length:
      rows = queries[...]                                        shared memory
      each thread: the numbers of its keys and of its values     registers, all on their way at once
      scores = f(rows . keys)                                    threads share the depth of a key
      most = max(scores);  weights = exp(scores - most)          of this part; none behind the length
      results = weights . values, total = sum(weights)           of this part
    each thread block (head, row): most = max of the parts, and the sum of results and totals times exp(most of the
      part - most), of the parts before the length

The length is data (`transform.fuse.bound_keys`), so that one recorded graph serves every token. With one part there is
no second launch. Rows of all query heads that share a key head are together, so that keys and values are read once.
Milakov and Gimelshein, Online normalizer calculation for softmax; Dao et al., Flash-Decoding for long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx
from tvm.target import Target

from ....ir.kernel import KEY_AXIS, Kernel
from ....target import Limits
from ...core.decisions import asking, decide, declined
from ...core.nest import allocate, block
from ..launch import GpuRule
from .over_keys_operands import shape_of
from .over_keys_part import PartOfKeys
from .over_keys_sum import PartsOfKeys
from .over_keys_tile import KeyShape, KeyTile, able, key_tile
from .softmax import SoftmaxAttention, attention_of


@dataclass(frozen=True)
class KeyParams:
    """What the rule reads of a target and a kernel: its limits, and whether its last input is a number of keys."""

    limits: Limits
    bounded: bool = True


@dataclass(frozen=True, eq=False)
class _KeyPlan:
    attention: SoftmaxAttention
    length: object
    shape: KeyShape
    tile: KeyTile


class GpuOverKeys(GpuRule):
    """The rule for attention of few rows over a cache, up to the last key that is seen."""

    def params_of(self, target: Target) -> KeyParams:
        """Return the limits of the target."""
        return KeyParams(Limits.of(target))

    def params_for(self, func: tirx.PrimFunc, target: Target) -> KeyParams:
        """Return the limits of the target, and whether the kernel has a length."""
        return replace(self.params_of(target), bounded=KEY_AXIS in (func.attrs or {}))

    def prepare(self, kernel: Kernel) -> Kernel:
        """Return the kernel unchanged: an attention is recognised by its unfolded stages."""
        return kernel

    def plan(self, kernel: Kernel, params: KeyParams) -> _KeyPlan | None:
        """Return how thread blocks share the keys; None if the kernel is no attention of few rows with a length."""
        if not params.bounded:
            return declined("it is no attention over a cache")
        attention = attention_of(kernel)
        if attention is None:
            return None
        shape = shape_of(attention)
        if shape is None:
            return declined("its keys or values have no vectors in memory")
        tile = key_tile(shape, params.limits)
        if tile is None:
            return declined(f"{shape.group} rows share keys, or a row has {shape.depth} numbers: too many")
        facts = {name: int(getattr(shape, name)) for name in ("heads", "group", "keys", "depth", "width", "bytes")}
        tile = decide("gpu_over_keys", tile, lambda other: able(other, shape, params.limits), **facts)
        return _KeyPlan(attention, kernel.inputs[-1], shape, tile)

    def emit(self, plan: _KeyPlan) -> tirx.Stmt:
        """Return the loop nests of both launches, or of one."""
        parts = PartsOfKeys(plan.attention, plan.length, plan.shape, plan.tile)
        first = PartOfKeys(parts).first()
        if parts.count == 1:
            return first
        return allocate([parts.results, parts.ends], block(first, parts.second()))


def why_not_over_keys(func: tirx.PrimFunc, target: Target) -> str:
    """Return why the rule does not take a kernel of attention with a length; empty if it does."""
    with asking(func) as account:
        taken = GpuOverKeys().planned(func, target) is not None
    return "" if taken else account.reason or "no rule takes it"
