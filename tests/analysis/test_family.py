# SPDX-License-Identifier: Apache-2.0
"""The family of a kernel, from its loop program alone."""

import pytest

from helpers import constant, module, op
from smartmem_tvm.analysis.family import FAMILIES, family_of
from smartmem_tvm.deploy.build import optimize

IMAGE = (1, 8, 12, 12)


def conv(groups):
    return lambda x: op.nn.conv2d(x, constant(8, 8 // groups, 3, 3), groups=groups)


def attention(x):
    scores = op.nn.softmax(op.matmul(x, op.permute_dims(x, [0, 2, 1])))
    return op.matmul(scores, x)


CASES = {
    "matmul": (lambda x: op.nn.gelu(op.matmul(x, constant(6, 10))), (4, 6)),
    "batched matmul": (lambda x: op.matmul(x, constant(3, 6, 10)), (3, 4, 6)),
    "attention": (attention, (3, 8, 6)),
    "convolution": (lambda x: op.nn.relu(conv(1)(x)), IMAGE),
    "grouped convolution": (conv(2), IMAGE),
    "depthwise convolution": (conv(8), IMAGE),
    "norm": (lambda x: op.nn.layer_norm(x, constant(6), constant(6), axes=[-1]), (4, 6)),
    "softmax": (lambda x: op.nn.softmax(x, axis=-1), (4, 6)),
    "pooling": (lambda x: op.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2)), IMAGE),
    "reduction": (lambda x: op.mean(x, axis=[2, 3]), IMAGE),
    "element-wise": (lambda x: op.add(op.exp(x), op.permute_dims(x)), (6, 6)),
    "layout": (lambda x: op.reshape(op.permute_dims(x), (3, 8)), (4, 6)),
}


def families(function, shape, dtype="float32"):
    mod = optimize(module(function, shape, dtype=dtype))
    return [family_of(func) for gvar, func in mod.functions.items() if gvar.name_hint != "main"]


@pytest.mark.parametrize("family", CASES)
def test_one_kernel_of_each_family(family):
    assert families(*CASES[family]) == [family] and family in FAMILIES


def test_a_convolution_without_a_window_is_a_matmul():
    assert families(lambda x: op.nn.conv2d(x, constant(16, 8, 1, 1)), IMAGE) == ["matmul"]


def test_a_look_up_is_a_gather():
    assert families(lambda x: op.take(constant(20, 6), x, axis=0), (5,), "int64") == ["gather"]
