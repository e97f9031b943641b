# SPDX-License-Identifier: Apache-2.0
"""Decompose layers that torch computes by one operator in inference, its "fast path", as the modules define them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Kinds of masks of these operators.
_PAIRS, _KEYS = 0, 1  # queries x keys; batch x keys. The third kind is batch x heads x queries x keys


def encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *more: torch.Tensor,
) -> torch.Tensor:
    """``torch.nn.TransformerEncoderLayer`` in inference."""
    from torch.nn import functional

    weights, mask, mask_type = more[:8], *[*more[8:], None, None][:2]
    (scale_1, shift_1, scale_2, shift_2), (up, up_bias, down, down_bias) = weights[:4], weights[4:]
    activate = functional.gelu if use_gelu else functional.relu

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), scale_1, shift_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), scale_2, shift_2, eps)

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = (qkv_weight, qkv_bias, out_weight, out_bias)
        return self_attention(x, x, x, width, heads, *projections, mask, False, mask_type=mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(activate(functional.linear(x, up, up_bias)), down, down_bias)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + feed(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + feed(x))


def self_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.MultiheadAttention`` of an input with itself: the result, and the weights or nothing."""
    from torch.nn import functional

    batch, count, _ = query.shape
    parts = [
        functional.linear(x, weight, bias).view(batch, count, heads, width // heads).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    ]
    added = _added(mask, mask_type, query)
    if need_weights:
        scores = (parts[0] * (width // heads) ** -0.5) @ parts[1].transpose(-2, -1)
        weights = (scores if added is None else scores + added).softmax(-1)
        found, weights = weights @ parts[2], weights.mean(1) if average_attn_weights else weights
    else:
        found, weights = functional.scaled_dot_product_attention(*parts, attn_mask=added), query.new_empty(0)
    found = found.transpose(1, 2).reshape(batch, count, width)
    return functional.linear(found, out_weight, out_bias), weights


def _added(mask: torch.Tensor | None, kind: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as numbers to add to the scores: minus infinity where it excludes a key."""
    import torch

    if mask is None:
        return None
    if kind == _KEYS:
        mask = mask[:, None, None, :]
    elif kind == _PAIRS:
        mask = mask[None, None, :, :]
    # A mask of numbers excludes a key where it is not 0, as in torch's kernel.
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask.to(torch.bool), -torch.inf)


FORMS = {
    "aten._native_multi_head_attention.default": self_attention,
    "aten._transformer_encoder_layer_fwd.default": encoder_layer,
}
