# SPDX-License-Identifier: Apache-2.0
"""Runs of kernels that are launched without the virtual machine: right, and only where nothing else has changed."""

import numpy as np
import pytest

from fake_driver import run_with_pocl
from helpers import constant, module, op
from opencl_child import load
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.options import Options
from smartmem_tvm.target import parse_target


def network():
    """Six kernels between one that reads the input and one that writes the result."""

    def build(x):
        first = hidden = op.nn.softmax(op.matmul(x, constant(16, 160)))
        for _ in range(3):
            hidden = op.nn.softmax(op.matmul(hidden, constant(160, 160)))
        return op.matmul(op.add(hidden, first), constant(160, 4))

    return module(build, (12, 16))


def inputs(times: int):
    return [np.random.default_rng(seed).standard_normal((12, 16)).astype("float32") for seed in range(times)]


def differences(target: str, graph: bool):
    """From the CPU's results, of inferences on inputs that differ; the last two on another machine's weights."""
    compiled, exact = compile(network(), parse_target(target), Options(cuda_graph=graph)), compile(network())
    found = [float(np.abs(compiled.run(x)[0] - exact.run(x)[0]).max()) for x in inputs(5)]
    machine = compiled.machine()
    for x in inputs(2):
        given = machine.tensors([x])
        result = machine["main"](*given)
        found.append(float(np.abs(result.numpy() - exact.run(x)[0]).max()))
    return found


@pytest.mark.device
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
@pytest.mark.parametrize("graph", [True, False])
def test_replayed_kernels_are_right(target, graph):
    assert max(run_with_pocl(differences, target, graph).value) < 1e-4


def with_other_weights():
    """Differences from the CPU where the weights are twice as large from the fourth call on."""
    compiled, exact = compile(network(), "opencl"), compile(network())
    machine, found = compiled.machine(), []
    given = machine.tensors(inputs(1))
    changed = [load().runtime.tensor(2 * each.numpy(), each.device) for each in given[1:]]
    cpu = exact.machine()
    expected = cpu.tensors(inputs(1))
    twice = [load().runtime.tensor(2 * each.numpy()) for each in expected[1:]]
    for call in range(7):
        ours = machine["main"](*(given if call < 4 else [given[0], *changed]))
        theirs = cpu["main"](*(expected if call < 4 else [expected[0], *twice]))
        found.append(float(np.abs(ours.numpy() - theirs.numpy()).max()))
    return found


@pytest.mark.device
def test_what_is_called_with_other_weights_is_not_replayed():
    assert max(run_with_pocl(with_other_weights).value) < 1e-4
