# SPDX-License-Identifier: Apache-2.0
"""FLatten-CSWin-S: CSWin-S with focused linear attention over the whole image in its first two stages.

Paper: Han, Pan, Han, Song, Huang, "FLatten Transformer: Vision Transformer using Focused Linear Attention",
ICCV 2023. Linear attention multiplies keys with values first, so that its cost grows with the number of tokens
and not with its square. Queries and keys become positive and are raised to the power of FOCUS, keeping their
length, which makes the attention sharper. A depth-wise convolution of the values, one for all heads, restores the
rank that the short products lack.

As the authors publish the small network, linear attention takes the place of the stripes in stages 1 and 2, where
it sees 56 x 56 and 28 x 28 tokens at once; stages 3 and 4 are those of CSWin-S, LePE is in all.

| | params M | GMACs |
|---|---|---|
| this definition | 35.5 | 6.8 |
| the paper's FLatten-CSWin-S | 35 | 6.9 |
| SmartMem's Table 7 | 37.3 | 7.2 |

Table 7 does not say which FLatten it is; its numbers are those of FLatten-PVT-M (37.2 M, 7.0 GMACs), which
attends to all tokens in all stages.
"""

from __future__ import annotations

import torch
from torch import nn

from .cswin_s import SIDES, STRIPES, CSWin, WindowAttention, Windows

FOCUS = 3
KERNEL = 5  # of the depth-wise convolution of the values
TINY = 1e-6


class FocusedLinearAttention(nn.Module):
    """Focused linear attention over one window of all tokens, with LePE."""

    def __init__(self, dim: int, heads: int, side: int, window: tuple[int, int]) -> None:
        super().__init__()
        self.heads = heads
        self.windows = Windows(side, window)
        self.lepe = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)
        self.pos_embed = nn.Parameter(torch.zeros(1, side * side, dim))
        self.temperature = nn.Parameter(torch.zeros(1, 1, dim))
        head = dim // heads
        self.restore = nn.Conv2d(head, head, KERNEL, padding=KERNEL // 2, groups=head)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.windows.cut(x) for x in (q, k, v))
        local = self.lepe(self.windows.images(v)).flatten(2).transpose(1, 2)
        q, k, v = (self.per_head(x) for x in (self.focus(q), self.focus(k + self.pos_embed), v))
        x = self.linear_attention(q, k, v) + self.diversity(v)
        return self.windows.join(x.transpose(1, 2).flatten(2) + local)

    def focus(self, x: torch.Tensor) -> torch.Tensor:
        """Turn vectors towards their largest entries, at the same length; all entries become positive."""
        x = (x.relu() + TINY) / nn.functional.softplus(self.temperature)
        power = x**FOCUS
        return power / power.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)

    def per_head(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, dim) -> (batch, heads, tokens, dim / heads)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    @staticmethod
    def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return q (k' v) / (q sum(k)'), with the mean in place of the sum to keep the numbers small."""
        share = k.shape[2] ** -0.5
        total = q @ k.mean(2, keepdim=True).transpose(2, 3)
        return q @ ((k.transpose(2, 3) * share) @ (v * share)) * (1 / (total + TINY))

    def diversity(self, v: torch.Tensor) -> torch.Tensor:
        """Convolve the values, the same way in each head."""
        batch, heads = v.shape[:2]
        images = self.windows.images(v.flatten(0, 1))
        return self.restore(images).flatten(2).transpose(1, 2).unflatten(0, (batch, heads))


def build() -> nn.Module:
    """Return FLatten-CSWin-S; the weights are yet to be drawn."""
    attentions = [FocusedLinearAttention, FocusedLinearAttention, WindowAttention, WindowAttention]
    return CSWin(attentions, (*SIDES[:2], *STRIPES[2:]))
