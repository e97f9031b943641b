# SPDX-License-Identifier: Apache-2.0
"""Several threads on one OpenCL device and on two: nothing is mixed up or built twice; and forked processes."""

import os
import threading

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from opencl_child import load, problem_of
from opencl_kernels import add_one, check_add_one, numbers


def forked_child() -> list[str]:
    """What a child that was forked after the first use says of a launch; and whether it ends."""
    tvm = load()
    tensor = tvm.runtime.tensor(numbers(16), tvm.opencl(0))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as pipe:
            pipe.write(problem_of(tensor.numpy))
        del tensor
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    return [message, str(os.waitpid(child, 0)[1]), str(float(tensor.numpy().sum()))]


@pytest.mark.parametrize("run", [run_with_fake, run_with_pocl])
def test_a_forked_child_says_what_is_wrong_and_ends(run):
    message, status, total = run(forked_child).value
    assert message.startswith("this process was forked after the first use of OpenCL device opencl:0")
    assert "spawn" in message and status == "0" and total == "120.0"


def in_threads(actions) -> list:
    """What several functions return that run at once; an exception is an answer too."""
    answers = [None] * len(actions)

    def work(index):
        try:
            answers[index] = actions[index]()
        except Exception as error:
            answers[index] = str(error)

    threads = [threading.Thread(target=work, args=[index]) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def shared_kernel(devices: list[int], times: int):
    """Each thread launches the same function on its own data, on its device."""
    run = add_one()
    start = threading.Barrier(len(devices))

    def thread(index):
        def action():
            device, first = load().opencl(devices[index]), 1000 * index
            start.wait()
            rights = []
            for step in range(times):
                source = load().runtime.tensor(numbers(1024, first + step), device)
                result = load().runtime.empty((1024,), "float32", device)
                run(source, result)
                rights.append(bool(np.array_equal(result.numpy(), numbers(1024, first + step + 1))))
            return all(rights)

        return action

    return in_threads([thread(index) for index in range(len(devices))])


@pytest.mark.device
@pytest.mark.parametrize("run", [run_with_fake, run_with_pocl])
@pytest.mark.parametrize("devices", [[0, 1], [0, 0], [0, 0, 1, 1]])
def test_threads_share_a_kernel(run, devices):
    settings = {"devices": "2"} if run is run_with_fake else {"devices": "pthread pthread"}
    outcome = run(shared_kernel, devices, 200, **settings)
    assert outcome.value == [True] * len(devices)
    if run is run_with_fake:
        assert outcome.report["kernel_races"] == 0
        # Built once for each device, whoever comes first.
        assert outcome.report["calls"]["build from source"] == len(set(devices))


def first_uses(count: int):
    """Modules and devices are used for the first time by several threads at once."""
    run = add_one()
    return in_threads([lambda: check_add_one(run, load().opencl(0))] * count)


def test_the_first_use_may_come_from_many_threads():
    outcome = run_with_fake(first_uses, 8, build_ms=50)
    assert outcome.value == [True] * 8
    assert outcome.report["calls"]["clCreateContext"] == 1
    assert outcome.report["calls"]["clCreateCommandQueue"] == 1
    assert outcome.report["calls"]["build from source"] == 1


def timed_beside_launches(times: int):
    """One thread times kernels, which moves the commands of the device to another queue and back; one launches."""
    device, run = load().opencl(0), add_one()
    tensors = [load().runtime.tensor(numbers(1024), device) for _ in range(2)]
    load().register_global_func("test.kernel", lambda: run(*tensors))
    args = (None, "test.kernel", device.dlpack_device_type(), 0, 1, 1, 0, 1, 0, 1, 0, "")
    evaluator = load().get_global_func("runtime.RPCTimeEvaluator")(*args)

    def timing():
        return len([evaluator() for _ in range(times)])

    return in_threads([timing, lambda: all(check_add_one(run, device) for _ in range(2 * times))])


@pytest.mark.parametrize("defer", [0, 1])
def test_a_timer_leaves_the_order_of_another_threads_commands(defer):
    assert run_with_fake(timed_beside_launches, 200, defer=defer).value == [200, True]
