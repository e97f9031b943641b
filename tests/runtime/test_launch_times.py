# SPDX-License-Identifier: Apache-2.0
"""Each launch of an inference by the device's own clock."""

import pytest

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.pipeline import Options
from smartmem_tvm.runtime.launch_times import launch_times
from smartmem_tvm.target import parse_target


def large_and_small(x):
    """A matmul that takes milliseconds anywhere, and one that takes next to nothing."""
    large = op.matmul(x, constant(512, 2048))
    return large, op.matmul(op.strided_slice(x, [0], [0], [4]), constant(512, 8))


@pytest.mark.device
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_launches_come_in_their_order_and_the_large_one_takes_long(target):
    options = Options(merge_projections=False)
    compiled = smartmem_tvm.compile(module(large_and_small, (256, 512)), parse_target(target), options)
    inputs = random((256, 512))
    before = compiled.run(*inputs)
    large, small = launch_times(compiled, inputs)
    assert {large.kernel, small.kernel} <= set(compiled.rules) and large.kernel != small.kernel
    assert large.seconds > 10 * small.seconds >= 0
    for first, again in zip(before, compiled.run(*inputs), strict=True):
        assert (first == again).all(), "launching a kernel again changes no result"
