# SPDX-License-Identifier: Apache-2.0
"""Shares and gains of kernels that several models have."""

import pytest

from smartmem_tvm.tune.kernel_run import KernelRun, gain_of, kernel_runs
from smartmem_tvm.tune.tasks import Task

TASKS = [
    Task(("a/one",), None, None, 2, {"a": 2}),
    Task(("a/both", "b/both"), None, None, 4, {"a": 1, "b": 3}),
    Task(("b/two",), None, None, 1, {"b": 1}),
]


def test_each_model_weighs_the_same():
    kernels = {each.name: each for each in kernel_runs(TASKS, [1.0, 2.0, 24.0])}
    assert kernels["a/one"].shares == {"a": 0.5} and kernels["a/one"].share == 0.25
    assert kernels["a/both"].shares == pytest.approx({"a": 0.5, "b": 0.2}) and kernels["a/both"].share == 0.35
    assert [each.share for each in kernels.values()] == sorted((each.share for each in kernels.values()), reverse=True)
    assert sum(each.share for each in kernels.values()) == pytest.approx(1)


def test_a_model_gains_by_its_own_kernels():
    kernels = kernel_runs(TASKS, [1.0, 2.0, 24.0])
    next(each for each in kernels if each.name == "a/both").winner = {"untuned": 2.0, "seconds": 1.0}
    assert gain_of(kernels, "a") == pytest.approx(1 / (0.5 + 0.25))
    assert gain_of(kernels, "b") == pytest.approx(1 / (0.8 + 0.1))
    assert gain_of(kernels) == pytest.approx(1 / (0.65 + 0.35 / 2))


def test_one_model_needs_no_name():
    (kernel,) = kernel_runs([Task(("k",), None, None, 3)], [1.0])
    assert kernel.shares == {"": 1.0} and kernel.share == 1.0


def test_what_a_kernel_promises_fades_with_batches_that_gain_nothing():
    kernel = KernelRun(None, 1.0)
    fresh = kernel.promise(2)
    kernel.times = [1.0, 2.0]
    idle = kernel.promise(2)
    kernel.times = [1.0, 2.0, 0.5, None]
    gained = kernel.promise(2)
    kernel.times = [1.0, 2.0, 0.5, None] + [3.0, None] * 6
    assert fresh > idle > 0 and gained > idle and kernel.promise(2) < 0.01
