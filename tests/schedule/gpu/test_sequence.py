# SPDX-License-Identifier: Apache-2.0
"""Kernels of several families become one launch each."""

import numpy as np
from tvm import te, topi

from gpu_rule_checks import TARGET, check, kernels
from smartmem_tvm.schedule.gpu.dlight_rules import OneThreadEach, Tiled
from smartmem_tvm.schedule.gpu.elementwise import GpuElementwise
from smartmem_tvm.schedule.gpu.rows.rows import GpuRows
from smartmem_tvm.schedule.gpu.sequence import GpuSequence
from smartmem_tvm.target import host_target


def rule(params=None):
    return GpuSequence([Tiled(), GpuRows(params), GpuElementwise(params), OneThreadEach()])


def tensors(*shapes):
    return [te.placeholder(shape, name=name) for shape, name in zip(shapes, "xyzw", strict=False)]


def test_two_matmuls_that_end_in_one_product():
    x, y, z = tensors((40, 24), (24, 50), (24, 50))
    output = topi.nn.relu(topi.matmul(x, y)) * topi.matmul(x, z)
    source = check(rule, [x, y, z], output, lambda x, y, z: np.maximum(x @ y, 0) * (x @ z))
    assert kernels(source) == 2


def test_a_matmul_and_the_statistics_of_its_rows():
    x, y = tensors((40, 24), (24, 50))
    output = topi.nn.softmax(topi.matmul(x, y))

    def reference(x, y):
        e = np.exp(x @ y - (x @ y).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    assert kernels(check(rule, [x, y], output, reference)) == 2


def test_what_one_rule_takes_or_none_knows_is_left_alone():
    x, y = tensors((40, 24), (24, 50))
    chain = te.create_prim_func([x, y, topi.nn.softmax(topi.matmul(x, y))])
    assert GpuSequence([GpuElementwise()]).apply(chain, TARGET) is None
    assert rule().apply(te.create_prim_func([x, topi.nn.relu(x)]), TARGET) is None
    assert rule().apply(chain, host_target()) is None
