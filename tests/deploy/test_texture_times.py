# SPDX-License-Identifier: Apache-2.0
"""Kernels with textures, launched alone on arguments where they expect them."""

import pytest
import tvm

from at_once import executor
from helpers import constant, legal, nodes, op
from smartmem_tvm.deploy import texture_times
from smartmem_tvm.deploy.fill_profiles import device_name, open_store
from smartmem_tvm.deploy.texture_times import TextureTimes
from smartmem_tvm.deploy.this_machine import LocalDevice
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.layout.place_textures.place_textures import PlaceTextures

TARGET = parse_target("opencl-texture")


@pytest.fixture
def store():
    return open_store(None, TARGET)


@pytest.fixture
def launches(monkeypatch):
    """What is launched, each time once, and not timed."""
    seen = []

    def once(device, code, name, sets, handing_over):
        assert handing_over
        for arguments in sets:
            code[name](*arguments)
        device.device.sync()
        seen.append(sets)
        return lambda launches, readings: [1e-6] * readings

    monkeypatch.setattr(LocalDevice, "clock", once)
    return seen


def times_in(store, count=1, **options):
    return TextureTimes(store, TARGET, executor(TARGET, count), **options)


def placed(build, *shapes, measure=None):
    """The module with textures wherever they are possible, or where `measure` wants them."""
    mod = FuseOperators()(EliminateLayout()(legal(build, *shapes)))
    with TARGET:
        return PlaceTextures(TARGET, TextureTrial(TARGET, measure=measure))(mod)


@pytest.mark.device
def test_arguments_are_where_a_kernel_expects_them(store, launches):
    """A launch with a buffer in place of a texture is refused by the device's library."""
    times = times_in(store)
    placed(lambda x: op.nn.softmax(op.matmul(x, constant(64, 64))), (32, 64), measure=times)
    assert times.failed == times.open == 0
    assert times.measured == len(launches) == store.kernels > 2
    first, second = launches[0]
    assert len(first) == len(second)
    assert all(one.shape == other.shape and not one.same_as(other) for one, other in zip(first, second, strict=True))


def test_a_workspace_is_there_before_the_launch_as_in_a_network(store, launches):
    """So long a sum of so few results is taken in two steps."""
    (node,) = nodes(EliminateLayout()(legal(lambda x: op.sum(x, axis=[1]), (4, 1 << 20))))
    assert TextureTrial(TARGET, measure=times_in(store))(emit(node.kernel)).measured == 1e-6
    ((arguments, _),) = launches
    assert [len(each.shape) for each in arguments] == [2, 1, 2], "input, result, workspace"


def test_what_is_known_is_not_measured_again(store, launches):
    for expected in (True, False):
        times = times_in(store)
        placed(lambda x: op.nn.relu(op.matmul(x, constant(64, 64))), (32, 64), measure=times)
        assert (times.measured > 0) == expected


def test_what_passes_will_ask_is_measured_ahead_and_together(store, monkeypatch):
    """On devices on which a kernel is the faster the more textures it has."""

    def seconds(_devices, job):
        return "there", 1e-3 / (1 + sum("texture" in each.scope() for each in job[0]["it"].params))

    monkeypatch.setattr(texture_times, "_seconds", seconds)

    def passes(ask):
        return placed(lambda x: op.nn.softmax(op.matmul(x, constant(64, 64))), (32, 64), measure=ask)

    times = times_in(store, count=2)
    times.ahead(passes)
    ahead = times.measured
    assert ahead == store.kernels == times.servers["there"] > 2
    passes(times)
    assert times.measured == ahead, "every texture paid, as was hoped"
    times.ahead(passes)
    assert times.measured == ahead, "what is known is not measured again"
    assert len(times.executor.workers.jobs) == ahead


def test_the_device_goes_by_its_own_name_and_a_phone_by_its_models():
    assert device_name(TARGET) == tvm.opencl(0).device_name
    assert device_name(parse_target("adreno-740")) == "adreno-740"
    assert device_name(host_target()) is None
