# SPDX-License-Identifier: Apache-2.0
"""Times of kernels beside their bounds."""

from dataclasses import replace

import pytest

import smartmem_tvm
from helpers import constant, module, op
from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.ir.graph import append_log
from smartmem_tvm.runtime.kernel_bounds import add_bounds, is_slow, kernel_bounds, slowest
from smartmem_tvm.runtime.kernel_times import KernelTime, schedule_report

SPEED = Speed("a machine", 1, {"float32": 1e6}, {"exp": 1e5}, ((1 << 10, 1e9), (1 << 20, 5e5)))


@pytest.fixture(scope="module")
def graph():
    mod = module(lambda x: (op.exp(x), op.cumsum(op.matmul(x, constant(8, 8)), axis=1)), (4, 8))
    return smartmem_tvm.optimize(mod)


@pytest.fixture(scope="module")
def bounds(graph):
    return kernel_bounds(graph, SPEED)


def rules(*names) -> dict:
    return {name: {"name": "Some", "family": "", "catch_all": name == "odd"} for name in names}


def report(times, bounds, names=()) -> dict:
    return add_bounds(schedule_report(rules(*times, *names), times), bounds, SPEED)


def test_every_kernel_has_a_bound_or_a_reason(graph, bounds):
    assert bounds["tir_exp1"].bound.seconds == pytest.approx(32 / 1e5)
    assert bounds["matmul1"].bound.seconds == pytest.approx(256 / 1e6)
    others = {name: each for name, each in bounds.items() if name not in ("tir_exp1", "matmul1")}
    assert others and all(each.bound is None and each.reason for each in others.values())


def test_products_that_were_rounded_have_the_speed_of_their_factors(graph, bounds):
    log = [{"pass": "RoundProducts", "kernel": "matmul1", "multiplied": "bfloat16"}, {"multiplied": "tf32"}]
    speed = replace(SPEED, multiply_adds={"float32": 1e6, "bfloat16": 16e6})
    found = kernel_bounds(append_log(graph, log), speed)
    assert found["matmul1"].bound.arithmetic == pytest.approx(bounds["matmul1"].bound.arithmetic / 16)


def test_shares_of_the_roofline(bounds):
    times = {"tir_exp1": KernelTime(2, 1.28e-3), "matmul1": KernelTime(1, 5.12e-3)}
    found = report(times, bounds)
    assert [each["of_roofline"] for each in found["kernels"]] == pytest.approx([0.5, 0.05])
    assert [each["bound_seconds"] for each in found["kernels"]] == pytest.approx([6.4e-4, 2.56e-4])
    assert found["slow_share"] == pytest.approx(0.8) and found["speed"]["name"] == "a machine"
    assert [each["kernel"] for each in slowest(found["kernels"])] == ["matmul1"]
    assert slowest(found["kernels"], 0.9) == []
    assert found["kernels"][0]["work"]["calls"] == {"exp": 32}


def test_known_reasons(bounds):
    """512 bytes take half a microsecond from a cache, and a thousand from memory."""
    times = {"matmul1": KernelTime(1, 1.5e-3)}
    (kernel,) = report(times, bounds)["kernels"]
    assert "from memory, and not from a cache, its bytes take 1024.0 us" in kernel["off"]
    times = {"odd": KernelTime(1, 1.0)}
    (kernel,) = report(times, {"odd": bounds["matmul1"]})["kernels"]
    assert kernel["off"] == "no rule is for kernels like this one" and is_slow(kernel)
    (kernel,) = report({"matmul1": KernelTime(1, 1.0)}, bounds)["kernels"]
    assert kernel["off"] is None and is_slow(kernel)


def test_what_has_no_bound_is_not_slow(bounds):
    (kernel,) = report({"library": KernelTime(1, 1.0)}, bounds)["kernels"]
    assert kernel["bound_seconds"] is None and not is_slow(kernel) and "library" in kernel["off"]


def test_without_times_a_bound_is_of_one_launch(bounds):
    found = add_bounds(schedule_report(rules("matmul1")), bounds, SPEED)
    (kernel,) = found["kernels"]
    assert kernel["bound_seconds"] == pytest.approx(2.56e-4) and kernel["of_roofline"] is None
    assert found["slow_share"] is None


def test_without_a_known_device_there_is_nothing(bounds):
    found = add_bounds(schedule_report(rules("matmul1"), {"matmul1": KernelTime(1, 1.0)}), {}, None)
    (kernel,) = found["kernels"]
    assert (found["speed"], found["slow_share"], kernel["bound_seconds"], kernel["off"]) == (None, None, None, None)
