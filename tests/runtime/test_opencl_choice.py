# SPDX-License-Identifier: Apache-2.0
"""Machines without an OpenCL driver or device, and the choice among several devices."""

import pytest

from fake_driver import run_with_fake
from opencl_child import load, problem_of, sentence
from opencl_kernels import add_one, check_add_one, numbers


def without_devices():
    """What the library says, and what TVM does without a device."""
    tvm = load()
    problem = str(tvm.get_global_func("smartmem.opencl.problem")())
    use = problem_of(lambda: tvm.runtime.tensor(numbers(4), tvm.opencl(0)))
    on_cpu = tvm.runtime.tensor(numbers(4), tvm.cpu(0)).numpy().tolist()
    return [problem, bool(tvm.opencl(0).exist), use, on_cpu]


@pytest.mark.device
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SMARTMEM_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}, ["/nowhere/libOpenCL.so", "SMARTMEM_OPENCL_LIBRARY"]),
        ({"SMARTMEM_OPENCL_LIBRARY": "libm.so.6"}, ["libm.so.6", "clGetPlatformIDs"]),
        ({"FAKE_OPENCL_DEVICES": "0"}, ["no device", "install"]),
        ({"FAKE_OPENCL_DEVICES": "0,0"}, ["no device", "install"]),
        ({"SMARTMEM_OPENCL_DEVICE": "nonsense"}, ["'nonsense'", "Fake device 0 on Fake platform 0"]),
        ({"SMARTMEM_OPENCL_PLATFORM": "7"}, ["'7'", "Fake platform 0", "SMARTMEM_OPENCL_PLATFORM"]),
    ],
)
def test_without_a_device_everything_else_works_and_one_sentence_says_why(env, words):
    problem, exists, use, on_cpu = run_with_fake(without_devices, env=env).value
    assert not exists
    assert sentence(problem) == sentence(use)
    assert all(word in problem for word in words), problem
    assert on_cpu == [0, 1, 2, 3]


def names():
    found = load().get_global_func("smartmem.opencl.devices")()
    return [str(each["name"]) for each in found]


THREE = {"devices": "2,1", "device_names": "Alpha;Beta;Gamma", "platform_names": "One;Two"}


@pytest.mark.device
@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({}, ["Alpha", "Beta", "Gamma"]),
        ({"SMARTMEM_OPENCL_PLATFORM": "two"}, ["Gamma"]),
        ({"SMARTMEM_OPENCL_PLATFORM": "0"}, ["Alpha", "Beta"]),
        ({"SMARTMEM_OPENCL_DEVICE": "ALPHA"}, ["Alpha"]),
        ({"SMARTMEM_OPENCL_DEVICE": "2"}, ["Gamma"]),
        ({"SMARTMEM_OPENCL_PLATFORM": "One", "SMARTMEM_OPENCL_DEVICE": "1"}, ["Beta"]),
        ({"SMARTMEM_OPENCL_DEVICE": "gpu"}, ["Alpha", "Beta", "Gamma"]),
    ],
)
def test_devices_are_chosen_by_the_environment(env, chosen):
    assert run_with_fake(names, env=env, **THREE).value == chosen


def selections():
    """Choices by the API, before the first use and after it."""
    select = load().get_global_func("smartmem.opencl.select")
    chosen = []
    for platform, device in [("two", ""), ("", "1"), ("", "")]:
        chosen.append([select(platform, device), names()])
    wrong = problem_of(lambda: select("One", "Gamma"))
    select("", "beta")
    works = check_add_one(add_one(), load().opencl(0))
    return [chosen, wrong, works, problem_of(lambda: select("two", "")), names()]


def test_devices_are_chosen_by_the_api_before_the_first_use():
    chosen, wrong, works, late, after = run_with_fake(
        selections, env={"SMARTMEM_OPENCL_DEVICE": "alpha"}, **THREE
    ).value
    assert chosen == [[1, ["Gamma"]], [1, ["Beta"]], [3, ["Alpha", "Beta", "Gamma"]]]
    assert all(name in sentence(wrong) for name in ("Gamma", "Alpha on One", "Beta on One", "Gamma on Two"))
    assert works
    assert "before the first use" in sentence(late)
    assert "Beta" in late
    assert after == ["Beta"]


def wrong_number():
    return problem_of(lambda: load().runtime.tensor(numbers(4), load().opencl(5)))


def test_a_device_number_that_does_not_exist():
    message = sentence(run_with_fake(wrong_number, **THREE).value)
    assert "opencl:5" in message
    assert "Alpha" in message
    assert "Gamma" in message
