# SPDX-License-Identifier: Apache-2.0
"""BiFormer-S: attention in which each region of the image first picks the regions that it attends to.

Paper: Zhu, Wang, Ke, Zhang, Lau, "BiFormer: Vision Transformer with Bi-Level Routing Attention", CVPR 2023.
The image is cut into 7 x 7 regions in each of the first three stages. The mean query of a region times
the mean keys of all gives its scores, the best of which (1, 4, 16) name the regions whose keys and values are
gathered for it. In the last stage a region would be one token, so all tokens attend to all. A depth-wise
convolution adds local context (LEPE): of the values in the routed stages, and of the attention's input in the last,
where the published network also has heads of 64 channels and no bias.

| | params M | GMACs |
|---|---|---|
| this definition, the paper and SmartMem's Table 7 | 25.5 | 4.5 |

The gather looks regions up by number alone, so the batch is one image.
"""

from __future__ import annotations

import torch
from torch import nn

REGIONS = 7  # in a row of the image


class BiLevelRoutingAttention(nn.Module):
    """Attention of each region's tokens to those of the `picks` regions it likes best; channels last."""

    def __init__(self, dim: int, picks: int, head: int = 32) -> None:
        super().__init__()
        self.dim, self.picks, self.heads = dim, picks, dim // head
        self.scale = dim**-0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.lepe = nn.Conv2d(dim, dim, kernel_size=5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = x.shape[1] // REGIONS
        regions = cut(x, side)
        q, kv = self.qkv(regions).split([self.dim, 2 * self.dim], dim=-1)
        picked = kv[self.route(q, kv[..., : self.dim])]  # (regions, picks, tokens, 2 * dim)
        k, v = picked.flatten(1, 2).split(self.dim, dim=-1)
        scores = (self.per_head(q) * self.scale) @ self.per_head(k).transpose(2, 3)
        out = scores.softmax(-1) @ self.per_head(v)
        out = join(out.transpose(1, 2).flatten(2), side)
        values = join(kv[..., self.dim :], side)
        local = self.lepe(values.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.proj(out + local)

    def route(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return for each region the numbers of the regions it attends to: (regions, picks)."""
        scores = (q.mean(1) * self.scale) @ k.mean(1).transpose(0, 1)
        return scores.topk(self.picks, dim=-1).indices

    def per_head(self, x: torch.Tensor) -> torch.Tensor:
        """(regions, tokens, dim) -> (regions, heads, tokens, dim / heads)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def cut(x: torch.Tensor, side: int) -> torch.Tensor:
    """(1, height, width, dim) -> (regions, side * side, dim)."""
    x = x.reshape(REGIONS, side, REGIONS, side, -1)
    return x.transpose(1, 2).reshape(REGIONS * REGIONS, side * side, -1)


def join(x: torch.Tensor, side: int) -> torch.Tensor:
    """The inverse of :func:`cut`."""
    x = x.reshape(REGIONS, REGIONS, side, side, -1)
    return x.transpose(1, 2).reshape(1, REGIONS * side, REGIONS * side, -1)


class FullAttention(nn.Module):
    """Attention of all tokens to all; channels last."""

    def __init__(self, dim: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.lepe = nn.Conv2d(dim, dim, kernel_size=5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, dim = x.shape
        tokens = x.flatten(1, 2)
        qkv = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = (q @ k.transpose(2, 3)) * (dim // self.heads) ** -0.5
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, height, width, dim)
        local = self.lepe(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.proj(out + local)


class Block(nn.Module):
    """Position by a depth-wise convolution, attention, MLP; channels first outside, last inside."""

    def __init__(self, dim: int, picks: int | None) -> None:
        super().__init__()
        self.position = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = FullAttention(dim) if picks is None else BiLevelRoutingAttention(dim, picks)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x + self.position(x)).permute(0, 2, 3, 1)
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x.permute(0, 3, 1, 2)


def halve(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Return the layers that halve height and width."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1), nn.BatchNorm2d(outputs)


class BiFormer(nn.Module):
    """Classifier: (1, 3, 224, 224) -> (1, 1000)."""

    def __init__(self, depths: tuple[int, ...], dims: tuple[int, ...], picks: tuple[int | None, ...]) -> None:
        super().__init__()
        layers = [*halve(3, dims[0] // 2), nn.GELU(), *halve(dims[0] // 2, dims[0])]
        for stage, (depth, dim) in enumerate(zip(depths, dims, strict=True)):
            if stage:
                layers += halve(dims[stage - 1], dim)
            layers += [Block(dim, picks[stage]) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(dims[-1])
        self.head = nn.Linear(dims[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(x)).flatten(2).mean(2))


def build() -> nn.Module:
    """Return BiFormer-S; the weights are yet to be drawn."""
    return BiFormer(depths=(4, 4, 18, 4), dims=(64, 128, 256, 512), picks=(1, 4, 16, None))
