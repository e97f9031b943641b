# SPDX-License-Identifier: Apache-2.0
"""TVM's timers on OpenCL: they read the device's clock, nest, and leave no event behind."""

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from opencl_child import live, load
from opencl_kernels import add_one, numbers


def evaluator(name: str, number: int):
    """TVM's time evaluator of a global function: one warm-up, then the mean of `number` runs."""
    args = (None, name, load().opencl(0).dlpack_device_type(), 0, number, 3, 0, 1, 0, 1, 0, "")
    return load().get_global_func("runtime.RPCTimeEvaluator")(*args)


def nested_timers():
    """Nanoseconds that the evaluators of a kernel, and of an evaluator of the kernel, found."""
    device, run = load().opencl(0), add_one()
    source, result = (load().runtime.tensor(numbers(1024), device) for _ in range(2))
    inner, outer = [], []

    def kernel():
        run(source, result)

    def kernels():
        inner.append(evaluator("test.kernel", 10)())

    load().register_global_func("test.kernel", kernel)
    load().register_global_func("test.kernels", kernels)
    outer.append(evaluator("test.kernels", 1)())
    times = [np.frombuffer(bytes(blob)) * 1e9 for blob in (*inner, *outer)]
    right = bool(np.array_equal(result.numpy(), numbers(1024, 1)))
    return [[list(part) for part in times], right, live()]


def test_timers_read_the_devices_clock_and_nest():
    (*inner, outer), right, left = run_with_fake(nested_timers).value
    assert right
    assert left["event"] == 0
    assert left["queue"] == 2
    assert inner == [pytest.approx([1000] * 3)] * 4
    # The evaluator inside warms up once and runs ten times, three times over.
    assert outer == pytest.approx([31_000] * 3)


def test_timers_on_a_real_driver():
    (*inner, outer), right, left = run_with_pocl(nested_timers).value
    assert right
    assert left["event"] == 0
    assert min(min(times) for times in inner) > 0
    assert min(outer) > 30 * min(min(times) for times in inner)
