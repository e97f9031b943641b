# SPDX-License-Identifier: Apache-2.0
"""Small networks of one operator each, between kernels that write and read its tensors, which can thus be textures."""

import numpy as np
from tvm import relax

from helpers import random
from smartmem_tvm.pipeline import Options

op, nn = relax.op, relax.op.nn
IMAGE = (1, 8, 9, 13)  # batch, channels, rows, columns
ROWS = (2, 11, 16)
# Options that keep each operator in a kernel of its own; otherwise it is fused with those around it.
ALONE = Options(rewrite=False, merge_projections=False, eliminate=False, fuse=False, fuse_attention=False)


def weight(*shape, terms, seed=7):
    """Return normal numbers that keep a sum of `terms` terms about as large as one of them."""
    return relax.const((random(shape, seed=seed)[0] / np.sqrt(terms)).astype("float32"))


def conv(x, given, made, size=3, groups=1, padding=None, **attrs):
    """Return a convolution of `given` channels to `made`; the window is not square if `size` is a pair."""
    down, across = size if isinstance(size, tuple) else (size, size)
    padding = padding if padding is not None else [down // 2, across // 2]
    terms = given // groups * down * across
    kernel = weight(made, given // groups, down, across, terms=terms)
    return nn.conv2d(x, kernel, padding=padding, groups=groups, **attrs)


def dense(x, given, made, seed=7):
    return op.matmul(x, weight(given, made, terms=given, seed=seed))


def images(middle, given=8, made=None):
    """Return `middle` between two convolutions; it reads `given` channels and writes `made`."""
    return lambda x: conv(middle(conv(x, 8, given)), made or given, 8)


def matrices(middle, made=16):
    """Return `middle` between two matmuls, whose last dimensions have 16 and `made` elements."""
    return lambda x: dense(middle(dense(x, 16, 16)), made, 16)


def residual(x):
    return nn.relu(conv(nn.relu(conv(x, 8, 8)), 8, 8) + x)


def gelu_blocks(x):
    """Two blocks, so that one reads the output of the other."""
    for _ in range(2):
        x = gelu_block(x)
    return x


def gelu_block(x):
    hidden = nn.gelu(dense(x, 16, 40) + weight(40, terms=1))
    return dense(hidden, 40, 16, seed=8) + weight(16, terms=1) + x


def heads(x, seed):
    """[batch, row, 16] -> [batch, 2, row, 8]"""
    return op.permute_dims(op.reshape(dense(x, 16, 16, seed), (2, 11, 2, 8)), [0, 2, 1, 3])


def attention(x):
    q, k, v = (heads(x, seed) for seed in (1, 2, 3))
    scores = nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) / relax.const(8**0.5, "float32"))
    return op.reshape(op.permute_dims(op.matmul(scores, v), [0, 2, 1, 3]), (2, 11, 16))


def attention_and_convolution(x):
    q, k, v = (heads(x, seed) for seed in (1, 2, 3))
    scores = nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])))
    return op.reshape(op.permute_dims(op.matmul(scores, v) + conv(v, 2, 2, groups=2), [0, 2, 1, 3]), (2, 11, 16))


def gated(x):
    halves = op.split(conv(x, 8, 16), 2, axis=1)
    return relax.TupleGetItem(halves, 0) * op.sigmoid(relax.TupleGetItem(halves, 1))


def chain(*channels):
    def build(x):
        for given, made in zip((8, *channels), (*channels, 8)):
            x = nn.relu(conv(x, given, made))
        return x

    return build


def last(x):
    """[n, c, h, w] -> [n, h, w, c]"""
    return op.permute_dims(x, [0, 2, 3, 1])


def layer_norm(x, size):
    return nn.layer_norm(x, weight(size, terms=1, seed=1), weight(size, terms=1, seed=2), axes=[-1])


def total(axis):
    return lambda x: x - op.sum(x, axis, keepdims=True)


def scaled(x):
    one, half = (relax.const(value, "float32") for value in (1.0, 0.5))
    return (x * half + one) / (x * x + one)


def attended(x):
    """Two batched matmuls."""
    return op.matmul(op.matmul(x, op.permute_dims(x, [0, 2, 1])), x)


def embedded(x):
    table = dense(op.reshape(x, (22, 16)), 16, 16)
    return op.take(table, relax.const(np.array([[3, 21, 0], [7, 7, 1]])), 0)


def sliced(x):
    return op.strided_slice(conv(x, 8, 8), [1, 2, 3], [2, 1, 3], [8, 9, 12], [1, 2, 2])


FUSED = {
    "conv2d": images(lambda t: conv(t, 8, 12), made=12),
    "conv2d of 1x1": images(lambda t: conv(t, 8, 20, 1), made=20),
    "conv2d of 3x1": images(lambda t: conv(t, 8, 8, (3, 1))),
    "conv2d, strided and dilated": images(lambda t: conv(t, 8, 20, strides=2, dilation=2), made=20),
    "conv2d, many channels": images(lambda t: conv(t, 32, 64), 32, 64),
    "conv2d_relu": images(lambda t: nn.relu(conv(t, 8, 8))),
    "relu_conv2d_relu": images(lambda t: nn.relu(conv(nn.relu(t), 8, 8))),
    "conv2d_add": images(lambda t: conv(t, 8, 8) + conv(t, 8, 8, 1)),
    "conv2d_sum": images(lambda t: t * op.sum(conv(t, 8, 8), [2, 3], keepdims=True)),
    "conv2d_mean": images(lambda t: t * op.mean(conv(t, 8, 8), [2, 3], keepdims=True)),
    "conv2d_mean over channels": images(lambda t: t * op.mean(conv(t, 8, 8), 1, keepdims=True)),
    "conv2d_transpose": lambda x: dense(last(conv(conv(x, 8, 8), 8, 16)), 16, 8),
    "conv2d_expand_dims": images(lambda t: op.sum(op.expand_dims(conv(t, 8, 8), 2) * op.expand_dims(t, 1), 2)),
    "conv2d_squeeze": lambda x: dense(op.squeeze(conv(conv(x, 8, 8), 8, 16, (9, 1), padding=[0, 0]), [2]), 13, 8),
    "conv2d_strided_slice": images(sliced, made=6),
    "conv2d_concat": images(lambda t: op.concat([conv(t, 8, 8), nn.relu(conv(t, 8, 12, 1))], 1), made=20),
    "conv2d_split": images(gated),
    "conv2d_softmax": images(lambda t: nn.softmax(conv(t, 8, 8), 1)),
    "conv2d_softmax over columns": images(lambda t: nn.softmax(conv(t, 8, 8), 3)),
    "conv2d_layer_norm": lambda x: dense(layer_norm(last(conv(conv(x, 8, 8), 8, 16)), 16), 16, 8),
    "grouped conv2d": images(lambda t: conv(t, 24, 24, groups=2), 24),
    "grouped conv2d, 4 channels each": images(lambda t: conv(t, 16, 16, groups=4, strides=2), 16),
    "grouped conv2d, 2 channels each": images(lambda t: conv(t, 8, 16, groups=4), made=16),
    "grouped conv2d, 3 channels each": images(lambda t: conv(t, 12, 12, groups=4), 12),
    "grouped conv2d, many channels each": images(lambda t: conv(t, 64, 64, groups=2), 64),
    "depthwise conv2d": images(lambda t: conv(t, 8, 8, groups=8)),
    "depthwise conv2d of 7x7": images(lambda t: nn.relu(conv(t, 8, 8, 7, groups=8, strides=2))),
    "depthwise conv2d, dilated": images(lambda t: conv(t, 8, 8, 5, groups=8, dilation=2)),
    "depthwise conv2d of 7 channels": images(lambda t: conv(t, 7, 7, groups=7), 7),
    "max pool": images(lambda t: nn.max_pool2d(t, 3, 2, 1)),
    "average pool": images(lambda t: nn.avg_pool2d(t, 3, 2, 1)),
    "average pool of 5 channels": images(lambda t: nn.avg_pool2d(t, 2, 2), 5),
    "global average pool": images(lambda t: conv(op.mean(t, [2, 3], keepdims=True), 8, 8, 1) * t),
    "residual block": images(residual),
    "conv chain": chain(5, 7, 12),
    "conv chain of 1x1": images(lambda t: conv(nn.relu(conv(t, 13, 3, 1)), 3, 17, 1), 13, 17),
}
ON_ROWS = {
    "matmul, bias, GELU and residual": (gelu_blocks, Options()),
    "attention": (matrices(attention), Options()),
    "attention with a convolution of the values": (matrices(attention_and_convolution), Options()),
    "matmul and softmax over its rows": (matrices(lambda t: nn.softmax(t, 1)), Options()),
    "batched matmul": (matrices(attended), ALONE),
    "batched matmul of 11 columns": (lambda x: attended(dense(x, 16, 11)), ALONE),
    "softmax over the texel axis": (matrices(nn.softmax), ALONE),
    "softmax over axis 1": (matrices(lambda t: nn.softmax(t, 1)), ALONE),
    "softmax over another axis": (matrices(lambda t: nn.softmax(t, 1) + dense(t, 16, 16, 9)), ALONE),
    "broadcast binary": (matrices(lambda t: t * op.max(t, 1, keepdims=True) + weight(11, 1, terms=1)), ALONE),
    "scalar binary": (matrices(scaled), ALONE),
    "reduction over axis 0": (matrices(total(0)), ALONE),
    "reduction over axis 1": (matrices(total(1)), ALONE),
    "reduction over axis 2": (matrices(total(2)), ALONE),
    "reduction over another axis": (matrices(lambda t: total(1)(t) + dense(t, 16, 16, 9)), ALONE),
    "layer norm": (matrices(lambda t: layer_norm(t, 16)), ALONE),
    "embedding gather": (lambda x: dense(embedded(x), 16, 8), ALONE),
}
# The operator, and the dimension of its operand that fills the texels: the one that it runs along, or another.
TEXELS = {
    "softmax over the texel axis": ("softmax", 2),
    "softmax over axis 1": ("softmax", 1),
    "softmax over another axis": ("softmax", 2),
    "reduction over axis 0": ("sum", 0),
    "reduction over axis 1": ("sum", 1),
    "reduction over axis 2": ("sum", 2),
    "reduction over another axis": ("sum", 2),
    "layer norm": ("layer_norm", 2),
}
CASES = {name: (build_it, IMAGE, Options()) for name, build_it in FUSED.items()}
CASES |= {name: (build_it, ROWS, options) for name, (build_it, options) in ON_ROWS.items()}
