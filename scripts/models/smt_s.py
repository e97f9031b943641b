# SPDX-License-Identifier: Apache-2.0
"""SMT-S: convolutions of several sizes that modulate the features early on, self-attention late.

Paper: Lin, Wu, Chen, Huang, Jin, "Scale-Aware Modulation Meet Transformer", ICCV 2023. Stages 1 and 2 are made
of modulation blocks, stage 3 of modulation and attention blocks in turn, stage 4 of attention blocks.

| | params M | GMACs |
|---|---|---|
| this definition | 22.6 | 4.8 |
| the paper | 20.5 | 4.7 |
| SmartMem's Table 7 | 22.5 | 4.9 |

The published network has the numbers of this definition; the difference to the paper's is its own.
"""

from __future__ import annotations

import torch
from torch import nn

KERNELS = (3, 5, 7, 9)  # one head of the modulation each


def image(x: torch.Tensor, side: int) -> torch.Tensor:
    """(batch, tokens, dim) -> (batch, dim, side, side)."""
    return x.transpose(1, 2).unflatten(2, (side, side))


def sequence(x: torch.Tensor) -> torch.Tensor:
    """(batch, dim, height, width) -> (batch, tokens, dim)."""
    return x.flatten(2).transpose(1, 2)


def depthwise(dim: int, kernel: int) -> nn.Conv2d:
    """Return a depth-wise convolution that keeps the size of the image."""
    return nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)


class Modulation(nn.Module):
    """Scale-aware modulation: values times what convolutions of four sizes saw around them."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.value = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, dim)
        heads = len(KERNELS)
        self.scales = nn.ModuleList(depthwise(dim // heads, kernel) for kernel in KERNELS)
        # Scale-aware aggregation: first the same channel of all heads, then everything.
        self.aggregate = nn.Sequential(
            nn.Conv2d(dim, 2 * dim, kernel_size=1, groups=dim // heads),
            nn.BatchNorm2d(2 * dim),
            nn.GELU(),
            nn.Conv2d(2 * dim, dim, kernel_size=1),
        )
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.context(x).unflatten(1, (self.side, self.side)).unflatten(3, (len(KERNELS), -1))
        heads = heads.permute(3, 0, 4, 1, 2)
        seen = [scale(head) for scale, head in zip(self.scales, heads, strict=True)]
        modulator = self.aggregate(torch.stack(seen, dim=2).flatten(1, 2))
        return self.proj(sequence(modulator) * self.value(x))


class Attention(nn.Module):
    """Self-attention with a depth-wise convolution of the values beside it."""

    def __init__(self, dim: int, side: int, heads: int) -> None:
        super().__init__()
        self.side, self.heads = side, heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.local = depthwise(dim, 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head = x.shape[2] // self.heads
        q = self.query(x).unflatten(2, (self.heads, head)).transpose(1, 2)
        kv = self.key_value(x).unflatten(2, (2, self.heads, head)).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        scores = (q @ k.transpose(2, 3)) * head**-0.5
        out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        values = v.transpose(1, 2).flatten(2)
        return self.proj(out + sequence(self.local(image(values, self.side))))


class Mlp(nn.Module):
    """Two linear layers with a depth-wise convolution added between them."""

    def __init__(self, dim: int, side: int, ratio: int) -> None:
        super().__init__()
        self.side = side
        self.expand = nn.Linear(dim, ratio * dim)
        self.local = depthwise(ratio * dim, 3)
        self.contract = nn.Linear(ratio * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.expand(x)
        x = x + sequence(self.local(image(x, self.side)))
        return self.contract(nn.functional.gelu(x))


class Block(nn.Module):
    """Pre-norm block; `heads` is None for one that modulates."""

    def __init__(self, dim: int, side: int, heads: int | None, ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.mixer = Modulation(dim, side) if heads is None else Attention(dim, side, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, side, ratio)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """A smaller image, blocks and a norm: (batch, channels, height, width) -> (batch, tokens, dim).

    `heads` has an entry for each block, None for one that modulates.
    """

    def __init__(self, down: nn.Module, dim: int, side: int, heads: tuple[int | None, ...], ratio: int) -> None:
        super().__init__()
        self.down = down
        self.norm1 = nn.LayerNorm(dim)
        self.blocks = nn.Sequential(*(Block(dim, side, h, ratio) for h in heads))
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm2(self.blocks(self.norm1(sequence(self.down(x)))))


class Smt(nn.Module):
    """Classifier: (batch, 3, 224, 224) -> (batch, 1000)."""

    def __init__(
        self, dims: tuple[int, ...], heads: tuple[tuple[int | None, ...], ...], ratios: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.sides = (56, 28, 14, 7)
        stages = []
        for i, (dim, side) in enumerate(zip(dims, self.sides, strict=True)):
            down = nn.Conv2d(dims[i - 1], dim, kernel_size=3, stride=2, padding=1) if i else stem(dim)
            stages.append(Stage(down, dim, side, heads[i], ratios[i]))
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(dims[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages[0](x)
        for stage, side in zip(self.stages[1:], self.sides, strict=False):
            x = stage(image(x, side))
        return self.head(x.mean(1))


def stem(dim: int) -> nn.Module:
    """Return the layers that make the image four times smaller."""
    return nn.Sequential(
        nn.Conv2d(3, dim, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(dim),
        nn.ReLU(),
        nn.Conv2d(dim, dim, kernel_size=2, stride=2),
    )


def build() -> nn.Module:
    """Return SMT-S; the weights are yet to be drawn."""
    heads = ((None,) * 3, (None,) * 4, (None, 8) * 9, (16,) * 2)
    return Smt(dims=(64, 128, 256, 512), heads=heads, ratios=(4, 4, 4, 2))
