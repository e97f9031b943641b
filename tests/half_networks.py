# SPDX-License-Identifier: Apache-2.0
"""Two small networks with all kinds of kernels of the demo networks."""

from math import prod, sqrt

from tvm import relax

from helpers import constant, op, random

IMAGE, TOKENS = (1, 8, 18, 18), (2, 36, 32)


def weight(*shape, seed=7):
    """Return weights that keep the size of their operand, so that rounding is not magnified."""
    terms = shape[0] if len(shape) == 2 else prod(shape[1:])
    return relax.const(random(shape, seed=seed)[0] / sqrt(terms))


def convolutions(x, pool=op.nn.max_pool2d):
    """Return a convolution with many channels, a depthwise and a grouped one, and pools."""
    y = op.nn.relu(op.nn.conv2d(x, weight(32, 8, 3, 3), padding=1))
    y = op.nn.conv2d(pool(y, (2, 2), strides=(2, 2)), weight(32, 1, 3, 3), padding=1, groups=32)
    y = op.nn.gelu(op.nn.conv2d(y, weight(32, 8, 3, 3), padding=1, groups=4))
    return op.mean(y, axis=[2, 3])


def transformer(x):
    """Norms, projections, attention, an MLP."""
    y = op.nn.layer_norm(x, constant(32), constant(32), axes=[-1])
    q, k, v = (op.matmul(y, weight(32, 32, seed=n)) for n in range(3))
    scores = op.multiply(op.matmul(q, op.permute_dims(k, (0, 2, 1))), relax.const(1 / sqrt(32)))
    x = op.add(x, op.matmul(op.nn.softmax(scores), v))
    return op.add(x, op.matmul(op.nn.gelu(op.add(op.matmul(x, weight(32, 64)), constant(64))), weight(64, 32)))


NETWORKS = {"convolutions": (convolutions, IMAGE), "transformer": (transformer, TOKENS)}
