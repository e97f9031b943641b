# SPDX-License-Identifier: Apache-2.0
"""The time of each kernel, next to the rule that made its schedule."""

import pytest

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.pipeline import Options
from smartmem_tvm.runtime.kernel_times import KernelTime, kernel_times, schedule_report


def fast_and_slow(x):
    """Exponentials, and a matmul of many more terms."""
    return op.exp(x), op.matmul(x, constant(512, 2048))


@pytest.fixture(scope="module")
def compiled():
    return smartmem_tvm.compile(module(fast_and_slow, (256, 512)), options=Options(fuse=False))


def test_every_kernel_is_timed_and_the_slowest_comes_first(compiled):
    times = kernel_times(compiled, random((256, 512)))
    assert list(times) == ["matmul1", "tir_exp1"] and set(times) == set(compiled.rules)
    assert times["matmul1"].seconds > times["tir_exp1"].seconds > 0
    assert [each.launches for each in times.values()] == [1, 1]


def test_all_launches_of_a_kernel_count_for_it():
    def build(x):
        for _ in range(3):
            x = op.nn.softmax(op.matmul(x, constant(6, 6)))
        return x

    compiled = smartmem_tvm.compile(module(build, (4, 6)), options=Options(fuse_attention=False))
    times = kernel_times(compiled, random((4, 6)), rounds=1)
    assert sorted(each.launches for each in times.values()) == [3, 3]


def test_the_report_names_the_rule_and_the_share(compiled):
    report = schedule_report(compiled.rules, {"matmul1": KernelTime(1, 3.0), "tir_exp1": KernelTime(2, 1.0)})
    first, second = report["kernels"]
    assert (first["kernel"], first["rule"], first["share"]) == ("matmul1", "Matmul", 0.75)
    assert (second["kernel"], second["rule"], second["launches"]) == ("tir_exp1", "Elementwise", 2)
    assert "reduce" in second["family"] and report["catch_all_share"] == 0


def test_shares_of_the_catch_all_rules_are_added_up():
    rules = {name: {"name": name, "family": "", "catch_all": name != "c"} for name in "abc"}
    report = schedule_report(rules, {name: KernelTime(1, seconds) for name, seconds in zip("abc", (1, 2, 5))})
    assert report["catch_all_share"] == pytest.approx(3 / 8)


def test_a_library_function_is_nobodys_and_no_catch_all():
    report = schedule_report({}, {"tvm.contrib.sort.sort": KernelTime(1, 1.0)})
    assert [(each["rule"], each["catch_all"]) for each in report["kernels"]] == [("TVM", False)]


def test_without_times_there_are_no_shares(compiled):
    report = schedule_report(compiled.rules)
    assert {each["kernel"] for each in report["kernels"]} == {"tir_exp1", "matmul1"}
    assert {each["share"] for each in report["kernels"]} == {None} == {report["catch_all_share"]}
