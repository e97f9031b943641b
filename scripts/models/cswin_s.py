# SPDX-License-Identifier: Apache-2.0
"""CSWin-S: each half of the heads attends within stripes of the image, one half in columns, the other in rows.

Paper: Dong, Bao, Chen, Zhang, Yu, Yuan, Chen, Guo, "CSWin Transformer: A General Vision Transformer Backbone with
Cross-Shaped Windows", CVPR 2022. Stripes are 1, 2, 7 and 7 tokens wide in the four stages; in the last, where
that is the whole image, all heads attend to everything. A depth-wise convolution of the values inside a stripe is
added to the attention's result (LePE, locally-enhanced positional encoding). The image is made smaller by
overlapping convolutions: 7 x 7 with stride 4 first, 3 x 3 with stride 2 between stages.

| | params M | GMACs |
|---|---|---|
| this definition | 34.6 | 6.8 |
| the paper | 35 | 6.9 |
| SmartMem's Table 7 | 34.7 | 6.9 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

SIDES = (56, 28, 14, 7)  # tokens in a row of the image, per stage
DEPTHS = (2, 4, 32, 2)
DIMS = (64, 128, 256, 512)
HEADS = (2, 4, 8, 16)
STRIPES = (1, 2, 7, 7)

# (dim, heads, side, window) -> module: (batch, tokens, dim) queries, keys and values -> the attention's result.
Attention = Callable[[int, int, int, tuple[int, int]], nn.Module]


class Windows:
    """A square image of tokens cut into windows of `height` x `width`, row by row."""

    def __init__(self, side: int, window: tuple[int, int]) -> None:
        self.height, self.width = window
        self.rows, self.columns = side // self.height, side // self.width

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, dim) -> (batch * windows, tokens of a window, dim)."""
        x = x.reshape(-1, self.rows, self.height, self.columns, self.width, x.shape[-1])
        return x.transpose(2, 3).reshape(-1, self.height * self.width, x.shape[-1])

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`cut`."""
        tokens = self.rows * self.height * self.columns * self.width
        x = x.reshape(-1, self.rows, self.columns, self.height, self.width, x.shape[-1])
        return x.transpose(2, 3).reshape(-1, tokens, x.shape[-1])

    def images(self, x: torch.Tensor) -> torch.Tensor:
        """(batch * windows, tokens of a window, dim) -> (batch * windows, dim, height, width)."""
        return x.transpose(1, 2).unflatten(2, (self.height, self.width))


class WindowAttention(nn.Module):
    """Self-attention inside windows, with LePE."""

    def __init__(self, dim: int, heads: int, side: int, window: tuple[int, int]) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.windows = Windows(side, window)
        self.lepe = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.windows.cut(x) for x in (q, k, v))
        local = self.lepe(self.windows.images(v)).flatten(2).transpose(1, 2)
        q, k, v, local = (self.per_head(x) for x in (q, k, v, local))
        weights = ((q * self.scale) @ k.transpose(2, 3)).softmax(-1)
        x = weights @ v + local
        return self.windows.join(x.transpose(1, 2).flatten(2))

    def per_head(self, x: torch.Tensor) -> torch.Tensor:
        """(windows, tokens, dim) -> (windows, heads, tokens, dim / heads)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Pre-norm block; the channels are shared out evenly among `windows`, heads and all."""

    def __init__(
        self, dim: int, heads: int, side: int, windows: Sequence[tuple[int, int]], attention: Attention
    ) -> None:
        super().__init__()
        shares = len(windows)
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attentions = nn.ModuleList(attention(dim // shares, heads // shares, side, w) for w in windows)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.proj(self.attend(self.norm1(x)))
        return x + self.mlp(self.norm2(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, dim) -> the same."""
        qkv = self.qkv(x).unflatten(2, (3, -1)).permute(2, 0, 1, 3)
        shares = qkv.chunk(len(self.attentions), dim=3) if len(self.attentions) > 1 else [qkv]
        parts = [f(share[0], share[1], share[2]) for f, share in zip(self.attentions, shares, strict=True)]
        return torch.cat(parts, dim=2)


class Shrink(nn.Module):
    """A convolution with stride, and a norm: (batch, channels, height, width) -> (batch, tokens, dim)."""

    def __init__(self, channels: int, dim: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, kernel, stride, padding)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x).flatten(2).transpose(1, 2))


class CSWin(nn.Module):
    """Classifier: (batch, 3, 224, 224) -> (batch, 1000).

    Parameters
    ----------
    attentions : sequence of Attention
        What the blocks of each stage do within a window.
    stripes : sequence of int
        Tokens across a stripe, per stage. One as wide as the image is a single window for all heads.
    """

    def __init__(self, attentions: Sequence[Attention], stripes: Sequence[int]) -> None:
        super().__init__()
        self.shrinks = nn.ModuleList([Shrink(3, DIMS[0], kernel=7, stride=4, padding=2)])
        for wide, narrow in zip(DIMS[1:], DIMS[:-1], strict=True):
            self.shrinks.append(Shrink(narrow, wide, kernel=3, stride=2, padding=1))
        self.stages = nn.ModuleList()
        for depth, dim, heads, side, stripe, attention in zip(
            DEPTHS, DIMS, HEADS, SIDES, stripes, attentions, strict=True
        ):
            windows = [(side, side)] if stripe == side else [(side, stripe), (stripe, side)]
            self.stages.append(nn.Sequential(*(Block(dim, heads, side, windows, attention) for _ in range(depth))))
        self.norm = nn.LayerNorm(DIMS[-1])
        self.head = nn.Linear(DIMS[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for shrink, stage, side in zip(self.shrinks, self.stages, SIDES, strict=True):
            tokens = stage(shrink(x))
            x = tokens.transpose(1, 2).unflatten(2, (side, side))
        return self.head(self.norm(tokens).mean(1))


def build() -> nn.Module:
    """Return CSWin-S; the weights are yet to be drawn."""
    return CSWin([WindowAttention] * 4, STRIPES)
