# SPDX-License-Identifier: Apache-2.0
"""Kernels by themselves on a device, one of which computes something else."""

from dataclasses import replace

import pytest

from helpers import constant, module, op
from smartmem_tvm import Options
from smartmem_tvm.remote.layers import check_layers, layers_of
from smartmem_tvm.remote.session import request
from smartmem_tvm.remote.tracked_devices import RemoteDevice
from smartmem_tvm.target import parse_target


def network(x):
    return op.nn.softmax(op.matmul(op.nn.relu(op.nn.conv2d(x, constant(16, 8, 3, 3))), constant(10, 12)))


@pytest.mark.parametrize("target", ["cpu", "opencl-texture"])
def test_the_kernel_that_is_wrong_is_named(target, shared_tracker, shared_device, tmp_path):
    target = parse_target(target)
    layers = layers_of(module(network, (1, 8, 12, 12)), target, Options(), tmp_path)
    assert len(layers) >= 2
    spoilt = [replace(layers[0], want=[each + 1 for each in layers[0].want]), *layers[1:]]
    with request(shared_tracker.address, "shared") as session:
        first, *others = check_layers(RemoteDevice(session, target), spoilt)
    assert first["kernels"] == list(layers[0].kernels) and "differs by" in first["wrong"]
    assert not any(each["wrong"] for each in others)
