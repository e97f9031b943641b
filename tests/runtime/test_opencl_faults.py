# SPDX-License-Identifier: Apache-2.0
"""Too little memory, textures beyond the limits, kernels that do not build: one sentence each, and work goes on."""

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from opencl_child import fake, live, load, problem_of, sentence
from opencl_kernels import TEXTURE, add_one, check_add_one, compile_kernel, elementwise, numbers, texture_round_trip

MEGABYTE = 1 << 20


# Memory.


def beyond_memory():
    """Too much memory at once, too much in all, and a pool that is in the way."""
    device, empty = load().opencl(0), load().runtime.empty
    at_once = problem_of(lambda: empty((9 * MEGABYTE,), "uint8", device))
    held = []
    in_all = problem_of(lambda: [held.append(empty((3 * MEGABYTE,), "uint8", device)) for _ in range(9)])
    count = len(held)
    held.clear()
    again = [empty((3 * MEGABYTE,), "uint8", device) for _ in range(count)]
    return [at_once, in_all, count, len(again), check_add_one(add_one(), device)]


def test_memory_runs_out_with_sizes_and_the_device_goes_on():
    at_once, in_all, count, again, works = run_with_fake(
        beyond_memory, memory=16 * MEGABYTE, max_alloc=8 * MEGABYTE
    ).value
    assert str(9 * MEGABYTE) in sentence(at_once)
    assert "8 MiB" in at_once
    assert str(3 * MEGABYTE) in sentence(in_all)
    assert "16 MiB" in in_all
    assert "Fake device 0" in in_all
    assert count == again == 5
    assert works


def pool_in_the_way(width: int, scope: str):
    """A model's storages, pooled and unused, fill the device; something else then needs the memory."""
    device = load().opencl(0)
    values = np.random.rand(64, width, 4).astype("float32")
    source = load().runtime.tensor(values, device)
    model = texture_round_trip(64, width)(device)
    right = bool(np.array_equal(model(source).numpy(), values))
    del source, model
    live()
    before = fake().report()["used_bytes"][0]
    room = 2 * MEGABYTE - before
    tensor = load().runtime.empty((room // 1024 + 64, 64, 4), "float32", device, scope)
    tensor.numpy()
    return [right, before, fake().report()["used_bytes"][0]]


@pytest.mark.device
@pytest.mark.parametrize("scope", ["global", TEXTURE])
def test_pooled_memory_is_given_back_before_memory_runs_out(scope):
    right, before, after = run_with_fake(pool_in_the_way, 256, scope, memory=2 * MEGABYTE).value
    assert right
    assert before >= 64 * 256 * 16
    assert after <= 2 * MEGABYTE


def model_beyond_memory():
    device = load().opencl(0)
    small, large = texture_round_trip(16, 256)(device), texture_round_trip(64, 2048 // 8)
    values = np.random.rand(16, 256, 4).astype("float32")
    source = load().runtime.tensor(values, device)
    small(source)
    big = np.zeros((64, 256, 4), "float32")
    message = problem_of(lambda: large(device)(load().runtime.tensor(big, device)))
    return [message, bool(np.array_equal(small(source).numpy(), values))]


def test_a_model_that_does_not_fit_says_so_and_a_smaller_one_still_runs():
    message, right = run_with_fake(model_beyond_memory, memory=MEGABYTE // 2).value
    assert "allocating 1048576 bytes (the device has 1 MiB" in sentence(message)
    assert right


# Textures.


def texture_of(shape: list[int]):
    device = load().opencl(0)
    values = np.random.rand(*shape).astype("float32")

    def make():
        tensor = load().runtime.empty(shape, "float32", device, TEXTURE)
        tensor.copyfrom(values)
        return bool(np.array_equal(tensor.numpy(), values))

    try:
        return make()
    except Exception as error:
        return str(error)


LIMITS = {"width": 48, "height": 24, "depth": 6}


@pytest.mark.device
@pytest.mark.parametrize("axis", LIMITS)
def test_a_texture_may_be_as_large_as_the_limit_and_no_larger(axis):
    sizes = {"depth": 2, "height": 3, "width": 5, axis: LIMITS[axis]}
    assert run_with_fake(texture_of, [*sizes.values(), 4], **LIMITS).value is True
    sizes[axis] += 1
    message = sentence(run_with_fake(texture_of, [*sizes.values(), 4], **LIMITS).value)
    assert f"{axis} {LIMITS[axis] + 1}" in message
    assert f"allows {LIMITS[axis]}" in message
    assert str((*sizes.values(), 4)) in message
    assert "buffer" in message


def test_a_device_without_images():
    message = sentence(run_with_fake(texture_of, [2, 3, 5, 4], images=0).value)
    assert "Fake device 0" in message
    assert "no images" in message


# Kernels.


def group_of(threads: int):
    device = load().opencl(0)
    run = add_one(2 * threads, threads)
    message = problem_of(lambda: check_add_one(run, device, 2 * threads))
    return [message, check_add_one(add_one(1024, 32), device)]


@pytest.mark.parametrize("run", [run_with_fake, run_with_pocl])
def test_a_work_group_that_is_too_large(run):
    settings, threads, limit = ({"work_group": 64}, 128, 64) if run is run_with_fake else ({}, 8192, 4096)
    message, works = run(group_of, threads, **settings).value
    assert "add_one_kernel" in sentence(message)
    assert f"({threads})" in message
    assert str(limit) in message
    assert works


def broken_kernel():
    """A module of two kernels one of which does not build; it is tried twice, and the good one is used alone."""
    device = load().opencl(0)
    good, bad = elementwise("add_one", 1024), elementwise("broken", 1024)
    both = load().compile(
        load().IRModule({"add_one": good, "broken": bad}), target=load().target.Target("opencl", host="llvm")
    )
    arrays = [load().runtime.tensor(numbers(1024), device) for _ in range(2)]
    said = [problem_of(lambda: both["broken"](*arrays)) for _ in range(2)]
    other = check_add_one(compile_kernel(good), device)
    return [said, other]


def broken_and_left():
    answer = broken_kernel()
    left = live()
    return [*answer, left["program"], left["kernel"]]


def test_a_kernel_that_does_not_build_is_named_with_the_compilers_words():
    outcome = run_with_fake(
        broken_and_left,
        build_fails="void broken_kernel(",
    )
    (first, second), other_works, programs, kernels = outcome.value
    assert first == second
    assert "broken_kernel" in first
    assert "the marker is here" in first
    assert "Fake device 0" in first
    assert other_works
    assert programs == kernels == 0


def wrong_arguments():
    device, run = load().opencl(0), add_one()
    one, other = load().runtime.tensor(numbers(1024), device), load().runtime.tensor(numbers(1024), load().opencl(1))
    cpu = load().runtime.tensor(numbers(1024), load().cpu(0))
    texture = load().runtime.empty((16, 16, 4), "float32", device, TEXTURE)
    said = [
        problem_of(lambda: run(one, other)),
        problem_of(lambda: run(one, cpu)),
        problem_of(lambda: run(one, texture)),
        problem_of(lambda: one.copyto(load().runtime.empty((8,), "float32", device))),
    ]
    return [said, check_add_one(run, device), check_add_one(run, load().opencl(1))]


def test_a_mistake_in_the_arguments_is_no_reason_to_give_up_a_device():
    said, first_works, second_works = run_with_fake(wrong_arguments, devices="2").value
    assert all("lost" not in message for message in said), said
    assert first_works
    assert second_works
