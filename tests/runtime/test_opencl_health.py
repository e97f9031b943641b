# SPDX-License-Identifier: Apache-2.0
"""The OpenCL runtime over a long time: no driver object and no memory is left behind."""

import functools
import gc
from pathlib import Path

import numpy as np
import pytest
from tvm_ffi import load_module

from fake_driver import run_with_fake, run_with_pocl
from opencl_child import fake, live, load, resident_bytes
from opencl_kernels import TEXTURE, add_one, numbers, texture_round_trip, texture_round_trips

MEGABYTE = 1 << 20
NOTHING = dict.fromkeys(["buffer", "image", "program", "kernel", "event"], 0)
DRIVERS = pytest.mark.parametrize("run", [run_with_fake, run_with_pocl])


def transient() -> dict[str, int]:
    """Driver objects that are there only while something uses them."""
    gc.collect()
    load().get_global_func("vm.builtin.memory_manager.clear")()
    return {kind: count for kind, count in live().items() if kind in NOTHING}


def then_left(function):
    """The function, its answer followed by the driver objects that are there after its return."""

    @functools.wraps(function)
    def wrapped(*args):
        return [*function(*args), transient()]

    return wrapped


def growth(action, times: int) -> int:
    """Bytes by which the process grows in the last two thirds of the repetitions."""
    for _ in range(times // 3):
        action()
    before = resident_bytes()
    for _ in range(times - times // 3):
        action()
    return resident_bytes() - before


@then_left
def tensors(scope: str, times: int):
    device, values = load().opencl(0), np.zeros((16, 64, 4), "float32")

    def action():
        tensor = load().runtime.empty(values.shape, "float32", device, scope)
        tensor.copyfrom(values)
        tensor.numpy()

    return [growth(action, times)]


@pytest.mark.device
@DRIVERS
@pytest.mark.parametrize("scope", ["global", TEXTURE])
def test_ten_thousand_tensors_leave_nothing(run, scope):
    outcome = run(tensors, scope, 10_000)
    grown, left = outcome.value
    assert left == NOTHING
    assert grown < 2 * MEGABYTE
    if run is run_with_fake:
        assert outcome.report["used_bytes"] == [0]


@then_left
def modules(folder: str, times: int):
    """The module of one file, loaded, built for the device, launched and freed again and again."""
    path = str(Path(folder) / "kernel.so")
    add_one().export_library(path)
    device = load().opencl(0)
    source, result = (load().runtime.tensor(numbers(1024), device) for _ in range(2))

    def action():
        load_module(path, keep_module_alive=False)["add_one"](source, result)

    grown = growth(action, times)
    return [grown, bool(np.array_equal(result.numpy(), numbers(1024, 1)))]


@pytest.mark.device
@DRIVERS
def test_hundreds_of_modules_leave_nothing(run, tmp_path):
    # PoCL takes 40 ms for a kernel from source.
    times = 1000 if run is run_with_fake else 200
    outcome = run(modules, str(tmp_path), times)
    grown, right, left = outcome.value
    assert right
    assert left == NOTHING
    assert grown < (2 if run is run_with_fake else 16) * MEGABYTE
    assert run is run_with_pocl or outcome.report["calls"]["build from source"] == times


@then_left
def texture_plans(width: int, times: int):
    device = load().opencl(0)
    model, values = texture_round_trip(8, width)(device), np.random.rand(8, width, 4).astype("float32")
    source = load().runtime.tensor(values, device)
    rights, held = [], []

    def action():
        rights.append(bool(np.array_equal(model(source).numpy(), values)))
        held.append(str(load().get_global_func("smartmem.opencl.live_objects")()))

    grown = growth(action, times)
    images = len(set(held[times // 3 :]))
    return [grown, all(rights), images]


@pytest.mark.device
@pytest.mark.parametrize("settings", [{"image_from_buffer": 0}, {"image_from_buffer": 1}])
@pytest.mark.parametrize("width", [64, 16])
def test_views_of_one_storage_are_kept_and_then_released(settings, width):
    """A row of 64 texels meets the pitch of the driver; one of 16 is padded, and does not fit in the storage."""
    outcome = run_with_fake(texture_plans, width, 600, pitch=64, **settings)
    grown, right, different, left = outcome.value
    assert right
    assert (different, left) == (1, NOTHING)
    assert grown < 2 * MEGABYTE
    assert outcome.report["calls"]["clCreateImage"] == 1
    assert outcome.report["used_bytes"] == [0]


def test_views_on_a_real_driver_are_kept_and_then_released():
    grown, right, different, left = run_with_pocl(texture_plans, 64, 600).value
    assert right
    assert (different, left) == (1, NOTHING)
    assert grown < 4 * MEGABYTE


def images_of_many_shapes(count: int, times: int):
    """Calls of clCreateImage in each inference of a plan with so many shapes of about the same size."""
    device = load().opencl(0)
    shapes = [(height, 8192 // height) for height in range(32, 32 + count)]
    model = texture_round_trips(*shapes)(device)
    sources = [load().runtime.tensor(np.zeros((*shape, 4), "float32"), device) for shape in shapes]
    made = []
    for _ in range(times):
        fake().forget()
        model(*sources)
        made.append(fake().calls("clCreateImage"))
    return made


@pytest.mark.device
@pytest.mark.parametrize("on", [0, 1])
def test_many_shapes_in_one_storage_are_made_once(on):
    made = run_with_fake(images_of_many_shapes, 40, 4, image_from_buffer=on, pitch=1).value
    assert made == [40, 0, 0, 0]


def arguments_of_launches(places: int, times: int):
    """Calls of clSetKernelArg in each round of launches with so many pairs of tensors; are the last ones' right?"""
    device, run = load().opencl(0), add_one()
    pairs = [[load().runtime.tensor(numbers(1024, first), device) for first in (n, 0)] for n in range(places)]
    made, kernels = [], []
    for _ in range(times):
        fake().forget()
        for source, target in pairs:
            run(source, target)
        made.append(fake().calls("clSetKernelArg"))
        kernels.append(fake().calls("clCreateKernel"))
    pairs[0] = [load().runtime.tensor(numbers(1024, 5), device) for _ in range(2)]
    fake().forget()
    run(*pairs[0])
    right = [bool(np.array_equal(target.numpy(), source.numpy() + 1)) for source, target in pairs]
    return [made, kernels, fake().calls("clSetKernelArg"), all(right)]


def test_arguments_that_come_back_are_set_once():
    """Each set has a kernel object of its own, and tensors that take the place of released ones are set again."""
    made, kernels, later, right = run_with_fake(arguments_of_launches, 5, 3).value
    assert made == [20, 0, 0] and kernels[1:] == [0, 0]
    assert later == 4 and right


def test_there_are_not_more_sets_of_arguments_than_are_worth_it():
    made, kernels, _, right = run_with_fake(arguments_of_launches, 100, 3).value
    assert made == [64 * 4 + 36 * 2, 200, 200], "where tensors begin does not change" and sum(kernels) <= 64
    assert right


def bytes_of_a_plan():
    device = load().opencl(0)
    model = texture_round_trip(8, 64)(device)
    source = load().runtime.tensor(np.zeros((8, 64, 4), "float32"), device)
    model(source)
    return fake().report()["used_bytes"][0]


def test_an_image_on_a_buffer_takes_no_memory_of_its_own():
    beside, above = (run_with_fake(bytes_of_a_plan, image_from_buffer=on).value for on in (0, 1))
    assert beside - above == 8 * 64 * 16


def streams(times: int):
    device, values = load().opencl(0), numbers(1024)
    run = add_one()
    source, result = (load().runtime.tensor(values, device) for _ in range(2))

    def action():
        stream = device.create_raw_stream()
        device.set_raw_stream(stream)
        run(source, result)
        device.sync(stream)
        device.free_raw_stream(stream)

    grown, queues = growth(action, times), live()["queue"]
    return [grown, queues, bool(np.array_equal(result.numpy(), numbers(1024, 1)))]


@DRIVERS
def test_streams_come_and_go(run):
    grown, queues, right = run(streams, 300).value
    assert right
    assert queues == 1
    assert grown < 4 * MEGABYTE


def between_devices():
    run, values = add_one(), numbers(1024)
    first, second = load().opencl(0), load().opencl(1)
    there = load().runtime.tensor(values, first).copyto(second)
    result = load().runtime.empty((1024,), "float32", second)
    run(there, result)
    back = result.copyto(first)
    return bool(np.array_equal(back.numpy(), values + 1))


@DRIVERS
def test_tensors_go_from_device_to_device(run):
    settings = {"devices": "1,1"} if run is run_with_fake else {"devices": "pthread pthread"}
    assert run(between_devices, **settings).value


def parts_of_a_tensor():
    """Copies into and out of parts of one buffer."""
    device, values = load().opencl(0), numbers(1024)
    whole = load().runtime.tensor(values, device)
    half = whole._create_view((512,), "float32", 512 * 4)
    half.copyfrom(numbers(512, 5000))
    quarter = half._create_view((256,), "float32", 128 * 4)
    other = load().runtime.empty((256,), "float32", device)
    quarter.copyto(other)
    expected = np.concatenate([values[:512], numbers(512, 5000)])
    return [
        np.array_equal(t.numpy(), e) for t, e in [(whole, expected), (other, expected[640:896]), (half, expected[512:])]
    ]


@DRIVERS
def test_parts_of_a_tensor_are_copied_from_where_they_are(run):
    assert run(parts_of_a_tensor).value == [True] * 3


def deferred():
    """Memory of the host that is freed at once, on a device that runs a command only once a thread waits for it."""
    device, run = load().opencl(0), add_one()
    tensors = [load().runtime.tensor(numbers(1024, i), device) for i in range(8)]
    result = load().runtime.empty((1024,), "float32", device)
    totals = []
    for tensor in tensors:
        run(tensor, result)
        totals.append(float(result.numpy()[0]))
    return totals


def test_no_command_outlives_what_it_reads():
    assert run_with_fake(deferred, defer=1).value == [float(i + 1) for i in range(8)]
