# SPDX-License-Identifier: Apache-2.0
"""Random weights under which a network's output depends on its input, as that of a trained one does."""

from __future__ import annotations

import math
import re

import torch

# (pattern of the parameter's name, mean, standard deviation)
Row = tuple[str, float, float]

# The first match wins. All other vectors are scales around one, matrices and convolutions are scaled by their
# inputs. Stock initial values make the networks blind:
# - gamma, the layer scale of ConvNeXt, starts at 1e-6 and removes each residual branch from the result;
# - cls_token starts near zero, bn3.weight at zero; ReLU layers forget their input (RELU_CONVOLUTION);
# - word embeddings outweigh those of position and type, which are the same for every text.
STATISTICS: tuple[Row, ...] = (
    (r"running_mean$", 0.0, 0.1),
    (r"running_var$", 1.0, 0.1),
    (r"gamma$", 0.5, 0.05),
    (r"bn3\.weight$", 1.8, 0.1),
    (r"(word_embeddings\.weight|pos_embed|cls_token|relative_position_bias_table)$", 0.0, 0.3),
    (r"embeddings\.weight$", 0.0, 0.1),
    (r"bias$", 0.0, 0.05),
)
VECTOR = (1.0, 0.1)
# Matrices and convolutions, per number of inputs n: mean * 1/n and standard deviation * 1/sqrt(n).
MATRIX = (0.0, 1.0)
# The outputs of a ReLU have a positive mean, which mean-free weights pass on as a constant that swamps the
# signal in the end. A slightly negative mean of the weights takes out part of it; with all of it gone the
# network would magnify rounding errors beyond what a comparison of two runtimes can bear.
RELU_CONVOLUTION = (-1.5, math.sqrt(2.0))
# SiLU halves what is small: with less than this the signal dies out on its way through YOLOv8's 64 layers, with
# more it grows beyond what the softmax over its boxes' 16 distances can bear.
SILU_CONVOLUTION = (-0.2, 1.5)
# Without norms and residual branches the constant is all that is left of a ReLU network unless more of it is taken out.
SQUEEZENET_CONVOLUTION = (-4.0, 2.5)
# Fifty residual blocks magnify rounding more than sixteen do; a ReLU6 cuts the constant off by itself.
RESNET152_CONVOLUTION = (-1.0, math.sqrt(2.0))
MOBILENETV2_CONVOLUTION = (-0.5, 1.2)
# The last norm of each residual branch says how much of the input the network has forgotten at the end: squeeze
# and excitation halve a branch, linear attention replaces each position by nearly the same mean of all.
REGNET: tuple[Row, ...] = ((r"conv3\.bn\.weight$", 3.2, 0.1),)
EFFICIENTVIT: tuple[Row, ...] = (
    (r"context_module\..*norm\.weight$", 0.1, 0.01),
    (r"point_conv\.norm\.weight$", 0.4, 0.04),
)
RESNET152: tuple[Row, ...] = ((r"bn3\.weight$", 0.75, 0.05),)
MOBILENETV2: tuple[Row, ...] = ((r"bn3\.weight$", 2.0, 0.1),)
# GPT-2 keeps its matrices transposed, inputs first. Positions are the same for every text, so less than its words.
GPT2: tuple[Row, ...] = (
    (r"wpe\.weight$", 0.0, 0.01),
    (r"mlp\.c_proj\.weight$", 0.0, 1 / math.sqrt(3072)),
    (r"(c_attn|c_proj|c_fc)\.weight$", 0.0, 1 / math.sqrt(768)),
)


def randomise(
    module: torch.nn.Module, seed: int, convolution: tuple[float, float] = MATRIX, statistics: tuple[Row, ...] = ()
) -> None:
    """Overwrite parameters and batch-norm statistics with draws that depend on `seed` only.

    `convolution` is (mean, standard deviation) of tensors with four axes, as in MATRIX; rows of `statistics`
    are tried before STATISTICS.
    """
    generator = torch.Generator().manual_seed(seed)
    buffers = [(n, b) for n, b in module.named_buffers() if re.search(r"running_(mean|var)$", n)]
    with torch.no_grad():
        parameters = [(n, p) for n, p in module.named_parameters() if p.requires_grad]  # the others are constants
        for name, tensor in parameters + buffers:
            mean, std = statistics_of(name, tensor, convolution, statistics)
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)


def statistics_of(
    name: str, tensor: torch.Tensor, convolution: tuple[float, float], statistics: tuple[Row, ...]
) -> tuple[float, float]:
    """Return (mean, standard deviation) for one parameter."""
    for pattern, mean, std in statistics + STATISTICS:
        if re.search(pattern, name):
            return mean, std
    if tensor.ndim == 1:
        return VECTOR
    inputs = math.prod(tensor.shape[1:])
    mean, std = convolution if tensor.ndim == 4 else MATRIX
    return mean / inputs, std / math.sqrt(inputs)
