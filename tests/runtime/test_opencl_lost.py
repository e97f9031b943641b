# SPDX-License-Identifier: Apache-2.0
"""A device that is lost: one sentence says so, the process goes on with another, nothing is left behind."""

import threading

import numpy as np
import pytest

from fake_driver import run_with_fake
from opencl_child import fake, live, load, problem_of, sentence
from opencl_kernels import TEXTURE, add_one, check_add_one, numbers, texture_round_trip


def clear_pool() -> None:
    load().get_global_func("vm.builtin.memory_manager.clear")()


def lost(after: int):
    """One device takes some commands and is lost; the work goes on with the other. What was said, and what is left."""
    first, second = load().opencl(0), load().opencl(1)
    run, model = add_one(), texture_round_trip(8, 64)
    matrix = np.random.rand(8, 64, 4).astype("float32")
    for device in (first, second):
        assert check_add_one(run, device)
        plan = model(device)
        assert np.array_equal(plan(load().runtime.tensor(matrix, device)).numpy(), matrix)
    kept = [load().runtime.tensor(numbers(1024), first) for _ in range(4)]
    texture = load().runtime.empty((8, 64, 4), "float32", first, TEXTURE)
    stream = first.create_raw_stream()
    fake().lose(0, after)
    said = [problem_of(lambda: [check_add_one(run, first) for _ in range(3)])]
    uses = [
        lambda: kept[0].numpy(),
        lambda: texture.copyfrom(matrix),
        lambda: load().runtime.empty((4,), "float32", first),
        lambda: load().runtime.empty((8, 64, 4), "float32", first, TEXTURE),
        lambda: run(kept[0], kept[1]),
        lambda: kept[0].copyto(second),
        lambda: add_one()(kept[0], kept[1]),
        lambda: first.sync(),
        lambda: first.create_raw_stream(),
        lambda: texture.numpy(),
    ]
    later = [problem_of(use) for use in uses]
    other_works = [check_add_one(run, second) for _ in range(3)] + [check_add_one(add_one(), second)]
    first.free_raw_stream(stream)
    return [said, later, other_works]


def lost_and_left(after: int):
    answer = lost(after)
    live()
    clear_pool()
    left = live()
    return [*answer, left, fake().report()["used_bytes"][0]]


@pytest.mark.device
@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("defer", [0, 1])
def test_a_lost_device_is_named_and_the_other_goes_on(after, defer):
    outcome = run_with_fake(lost_and_left, after, devices="2", defer=defer, image_from_buffer=after % 2)
    said, later, other_works, left, used = outcome.value
    for message in (*said, *later):
        assert "opencl:0 (Fake device 0)" in sentence(message), message
        assert "lost" in message
        assert "another device" in message
    assert all(other_works)
    assert {kind: count for kind, count in left.items() if count} == {"context": 2, "queue": 2}
    assert used == 0
    assert not outcome.stderr


def lost_beside_another():
    """Two threads, each on its device; one device is lost while both launch."""
    run, rights = add_one(), {0: [], 1: []}
    said = []

    def work(index):
        device = load().opencl(index)
        try:
            for _ in range(200):
                rights[index].append(check_add_one(run, device))
        except Exception as error:
            said.append([index, str(error)])

    threads = [threading.Thread(target=work, args=[index]) for index in rights]
    fake().lose(0, 100)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [said, len(rights[1]), all(rights[0]) and all(rights[1])]


def test_the_work_on_another_device_does_not_notice():
    said, finished, right = run_with_fake(lost_beside_another, devices="2").value
    assert [index for index, _ in said] == [0]
    assert "opencl:0 (Fake device 0) was lost" in sentence(said[0][1])
    assert right
    assert finished == 200


def lost_while_timed():
    device, run = load().opencl(0), add_one()
    source, result = (load().runtime.tensor(numbers(1024), device) for _ in range(2))
    run(source, result)
    calls = iter(range(100))

    def kernel():
        if next(calls) == 3:
            fake().lose(0)
        run(source, result)

    load().register_global_func("test.kernel", kernel)
    args = (None, "test.kernel", device.dlpack_device_type(), 0, 10, 1, 0, 1, 0, 1, 0, "")
    message = problem_of(load().get_global_func("runtime.RPCTimeEvaluator")(*args))
    return [message, check_add_one(run, load().opencl(1))]


def test_a_device_lost_while_it_is_timed():
    message, other_works = run_with_fake(lost_while_timed, devices="2").value
    assert "opencl:0 (Fake device 0)" in message
    assert "lost" in message
    assert other_works


def lost_at_exit():
    """Tensors, a module, a stream and a pool that are there when the process ends."""
    device = load().opencl(0)
    model, run = texture_round_trip(8, 64)(device), add_one()
    tensor = load().runtime.tensor(np.zeros((8, 64, 4), "float32"), device)
    model(tensor)
    check_add_one(run, device)
    globals()["kept"] = [model, run, tensor, load().runtime.empty((4, 4), "float32", device)]
    fake().lose(0)
    return True


@pytest.mark.parametrize("settings", [{}, {"defer": 1}])
def test_a_lost_device_does_no_harm_at_exit(settings):
    outcome = run_with_fake(lost_at_exit, **settings)
    assert not outcome.stderr
