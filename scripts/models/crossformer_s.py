# SPDX-License-Identifier: Apache-2.0
"""CrossFormer-S: embeddings from patches of several sizes, attention among near and among far tokens in turn.

Paper: Wang, Yao, Chen, Lin, Cai, He, Liu, "CrossFormer: A Versatile Vision Transformer Hinging on Cross-scale
Attention", ICLR 2022.

- Cross-scale embedding layer: convolutions of 4, 8, 16 and 32 pixels, all with stride 4, whose results are
  concatenated; large kernels get few channels. Between stages, kernels of 2 and 4 with stride 2.
- Short-distance attention among the 7 x 7 tokens of a group of neighbours, and in the next block
  long-distance attention among 7 x 7 tokens that lie 8, 4 or 2 apart; the last stage is a single group.
- Dynamic position bias: a small network computes the bias of two tokens from the distance between them. All its
  inputs are constants, so that constant folding leaves a table of biases.

| | params M | GMACs |
|---|---|---|
| this definition | 30.7 | 4.9 |
| the paper | 30.7 | 4.9 |
| SmartMem's Table 7 | 31 | 5.0 |

The bias networks are dim / 16 wide, as in the network that the authors publish; the paper says dim / 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

GROUP = 7  # tokens in a row of a group
SIDES = (56, 28, 14, 7)  # tokens in a row of the image, per stage
DEPTHS = (2, 2, 6, 2)
DIMS = (96, 192, 384, 768)
HEADS = (3, 6, 12, 24)
PATCHES = (4, 8, 16, 32)
MERGES = (2, 4)


class CrossScaleEmbedding(nn.Module):
    """Convolutions of several sizes side by side: (batch, channels, h, w) -> (batch, tokens, dim).

    The stride is the smallest kernel. Each kernel gets half the channels that are left, the last one all.
    """

    def __init__(self, channels: int, dim: int, kernels: Sequence[int]) -> None:
        super().__init__()
        stride = kernels[0]
        widths = [dim >> i for i in range(1, len(kernels))]
        widths.append(widths[-1])
        self.scales = nn.ModuleList(
            nn.Conv2d(channels, width, kernel, stride, padding=(kernel - stride) // 2)
            for width, kernel in zip(widths, kernels, strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([scale(x).flatten(2).transpose(1, 2) for scale in self.scales], dim=2)


class DynamicPositionBias(nn.Module):
    """A bias for each pair of tokens of a group, per head: (heads, tokens, tokens)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        width = dim // 16
        layers = [nn.Linear(2, width)]
        for outputs in (width, width, heads):
            layers += [nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs)]
        self.network = nn.Sequential(*layers)
        span = torch.arange(1 - GROUP, GROUP)
        self.register_buffer("distances", torch.cartesian_prod(span, span).float(), persistent=False)
        self.register_buffer("pairs", pair_numbers(), persistent=False)

    def forward(self) -> torch.Tensor:
        return self.network(self.distances)[self.pairs].permute(2, 0, 1)


def pair_numbers() -> torch.Tensor:
    """Return for each pair of tokens of a group the number of their distance: (tokens, tokens)."""
    place = torch.cartesian_prod(torch.arange(GROUP), torch.arange(GROUP))
    down, right = (place[:, None] - place[None, :] + GROUP - 1).unbind(2)
    return down * (2 * GROUP - 1) + right


class Attention(nn.Module):
    """Self-attention in each group: (groups, tokens, dim) -> the same."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.position = DynamicPositionBias(dim, heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = (q * self.scale) @ k.transpose(2, 3) + self.position()
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm block whose groups are made of neighbours, or of tokens that are far from each other."""

    def __init__(self, dim: int, heads: int, side: int, far: bool) -> None:
        super().__init__()
        self.side, self.far = side, far
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.ungroup(self.attn(self.group(self.norm1(x))))
        return x + self.mlp(self.norm2(x))

    def group(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, dim) -> (batch * groups, tokens of a group, dim)."""
        groups, dim = self.side // GROUP, x.shape[2]
        if self.far:  # row = row in the group * groups + group
            x = x.reshape(-1, GROUP, groups, GROUP, groups, dim).permute(0, 2, 4, 1, 3, 5)
        else:
            x = x.reshape(-1, groups, GROUP, groups, GROUP, dim).transpose(2, 3)
        return x.reshape(-1, GROUP * GROUP, dim)

    def ungroup(self, x: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`group`."""
        groups, dim = self.side // GROUP, x.shape[2]
        x = x.reshape(-1, groups, groups, GROUP, GROUP, dim)
        x = x.permute(0, 3, 1, 4, 2, 5) if self.far else x.transpose(2, 3)
        return x.reshape(-1, self.side * self.side, dim)


class CrossFormer(nn.Module):
    """Classifier: (batch, 3, 224, 224) -> (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = CrossScaleEmbedding(3, DIMS[0], PATCHES)
        self.embed_norm = nn.LayerNorm(DIMS[0])
        self.stages = nn.ModuleList()
        for depth, dim, heads, side in zip(DEPTHS, DIMS, HEADS, SIDES, strict=True):
            blocks = (Block(dim, heads, side, far=i % 2 == 1 and side > GROUP) for i in range(depth))
            self.stages.append(nn.Sequential(*blocks))
        self.merge_norms = nn.ModuleList(nn.LayerNorm(dim) for dim in DIMS[:-1])
        self.merges = nn.ModuleList(CrossScaleEmbedding(dim, 2 * dim, MERGES) for dim in DIMS[:-1])
        self.norm = nn.LayerNorm(DIMS[-1])
        self.head = nn.Linear(DIMS[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages[0](self.embed_norm(self.embed(x)))
        steps = zip(self.merge_norms, self.merges, self.stages[1:], SIDES, strict=False)
        for norm, merge, stage, side in steps:
            image = norm(x).transpose(1, 2).unflatten(2, (side, side))
            x = stage(merge(image))
        return self.head(self.norm(x).mean(1))


def build() -> nn.Module:
    """Return CrossFormer-S; the weights are yet to be drawn."""
    return CrossFormer()
