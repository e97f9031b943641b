# SPDX-License-Identifier: Apache-2.0
"""AutoFormer-S: the small network that AutoFormer's search found, with 2-D relative positions on keys and values.

Paper: Chen, Peng, Fu, Ling, "AutoFormer: Searching Transformers for Visual Recognition", ICCV 2021; its
appendix lists the choices of SEARCHED. A vision transformer (patches of 16 pixels, class token, absolute
positions, mean over the patches before the classifier) whose blocks differ in heads and MLP width.

A relative position is the pair of row and column distances of two patches, each cut off at FARTHEST; both
have a table of vectors, and the sum of the two vectors belongs to the pair. Distance 0 of a table stands for
every pair with the class token. The distances are constants, so that after constant folding nothing of
the look-up is left at run time.

| | params M | GMACs |
|---|---|---|
| this definition | 22.9 | 4.8, and 0.4 for the relative positions |
| the paper | 22.9 | 5.1 |
| SmartMem's Table 7 | 31.2 | 4.7 |

The MACs of Table 7 are those of the searched network without the relative positions. Its parameters are not: so
many, applied to 197 tokens, would be 6 GMACs, and the supernet that the network was searched in has 34.8 M.
"""

from __future__ import annotations

import torch
from torch import nn

GRID = 14  # patches in a row of the image
WIDTH = 384
HEAD = 64
FARTHEST = 14
# (heads, hidden width of the MLP / WIDTH) of each block.
SEARCHED = (
    (6, 3.0),
    (6, 3.5),
    (5, 3.0),
    (7, 3.5),
    (5, 4.0),
    (5, 4.0),
    (5, 4.0),
    (6, 4.0),
    (6, 4.0),
    (7, 4.0),
    (7, 4.0),
    (6, 3.5),
    (7, 4.0),
)


def distances(coordinate: torch.Tensor) -> torch.Tensor:
    """Return the table row for each pair of tokens, class token first.

    Parameters
    ----------
    coordinate : torch.Tensor
        (patches,) integers, the row or the column of each patch.

    Returns
    -------
    torch.Tensor
        (patches + 1, patches + 1): query, key.
    """
    between_patches = coordinate[None, :] - coordinate[:, None]
    rows = between_patches.clamp(-FARTHEST, FARTHEST) + FARTHEST + 1
    return nn.functional.pad(rows, (1, 0, 1, 0))


class RelativePosition(nn.Module):
    """A vector for each pair of tokens: (tokens, tokens, HEAD)."""

    def __init__(self) -> None:
        super().__init__()
        self.vertical_table = nn.Parameter(torch.zeros(2 * FARTHEST + 2, HEAD))
        self.horizontal_table = nn.Parameter(torch.zeros(2 * FARTHEST + 2, HEAD))
        patch = torch.arange(GRID * GRID)
        self.register_buffer("vertical", distances(patch // GRID), persistent=False)
        self.register_buffer("horizontal", distances(patch % GRID), persistent=False)

    def forward(self) -> torch.Tensor:
        return self.vertical_table[self.vertical] + self.horizontal_table[self.horizontal]


class Attention(nn.Module):
    """Self-attention of `heads` heads of HEAD channels, whatever the width of the network."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * heads * HEAD)
        self.key_position = RelativePosition()
        self.value_position = RelativePosition()
        self.proj = nn.Linear(heads * HEAD, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scale = HEAD**-0.5
        # A query has its own matrix of positions: one matmul per token, over all heads at once.
        to_position = self.per_token(q) @ self.key_position().transpose(1, 2)
        scores = (q @ k.transpose(2, 3)) * scale + self.per_head(to_position, batch) * scale
        weights = scores.softmax(-1)
        positions = self.per_head(self.per_token(weights) @ self.value_position(), batch)
        out = self.tokens_first(weights @ v) + self.tokens_first(positions)
        return self.proj(out)

    def per_token(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, tokens, n) -> (tokens, batch * heads, n)."""
        return x.permute(2, 0, 1, 3).flatten(1, 2)

    def per_head(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        """(tokens, batch * heads, n) -> (batch, heads, tokens, n)."""
        return x.transpose(0, 1).unflatten(0, (batch, self.heads))

    @staticmethod
    def tokens_first(x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, tokens, HEAD) -> (batch, tokens, heads * HEAD)."""
        return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, heads: int, ratio: float) -> None:
        super().__init__()
        hidden = int(WIDTH * ratio)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention(heads)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AutoFormer(nn.Module):
    """Classifier: (batch, 3, 224, 224) -> (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, kernel_size=16, stride=16)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, GRID * GRID + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(heads, ratio) for heads, ratio in SEARCHED))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 1:].mean(1))


def build() -> nn.Module:
    """Return AutoFormer-S; the weights are yet to be drawn."""
    return AutoFormer()
