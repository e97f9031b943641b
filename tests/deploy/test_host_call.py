# SPDX-License-Identifier: Apache-2.0
"""A call through memory that a device and this machine read; here both are this machine's."""

import contextlib

import numpy as np
import pytest
import tvm

from helpers import module, op
from smartmem_tvm import UserError, compile
from smartmem_tvm.deploy.arguments import Parameter, TensorKind
from smartmem_tvm.deploy.host_call import HostCall, PinnedCall, pinned_memory

CPU = tvm.cpu()
PARAMS = [Parameter("ids", TensorKind((2, 3), "int64")), Parameter("scale", TensorKind((), "float16"))]


def test_the_function_sees_what_the_caller_writes():
    seen = []

    def function(ids, scale):
        seen.append((ids.device, tuple(ids.shape), str(ids.dtype), str(scale.dtype), ids.is_contiguous()))
        return [tvm.runtime.tensor(ids.numpy() * float(scale.numpy())), ids]

    call = HostCall(function, PARAMS, CPU, CPU, contextlib.nullcontext)
    for number in (1, 5):
        call.inputs["ids"][...] = np.arange(6).reshape(2, 3) * number
        call.inputs["scale"][...] = 0.5
        scaled, same = call.run()
        np.testing.assert_array_equal(scaled, np.arange(6).reshape(2, 3) * number / 2)
        np.testing.assert_array_equal(same, call.inputs["ids"])
    assert seen == [(CPU, (2, 3), "int64", "float16", True)] * 2
    assert call.run()[0] is scaled  # results are arrays until the next call


def test_one_result_is_a_list_of_one():
    call = HostCall(lambda ids, _: ids, PARAMS, CPU, CPU, contextlib.nullcontext)
    call.inputs["ids"][...] = 3
    (found,) = call.run()
    np.testing.assert_array_equal(found, np.full((2, 3), 3))


def test_other_devices_have_no_such_memory():
    assert pinned_memory(CPU) is None


def test_inputs_are_copied_to_the_device_for_a_function_that_does_not_copy_them():
    seen = []

    def function(ids, scale):
        seen.append(ids.data_ptr())
        return [tvm.runtime.tensor(ids.numpy() * 2), scale]

    call = HostCall(function, PARAMS, CPU, CPU, reads=False)
    for number in (3, 4):
        call.inputs["ids"][...] = number
        call.inputs["scale"][...] = 1.5
        twice, scale = call.run()
        np.testing.assert_array_equal(twice, np.full((2, 3), 2 * number))
        assert scale == 1.5
    assert seen[0] == seen[1] != call.inputs["ids"].ctypes.data


def test_results_may_have_other_sizes_in_the_next_call():
    sizes = iter([2, 5])
    call = HostCall(lambda *_: tvm.runtime.tensor(np.arange(next(sizes))), PARAMS, CPU, CPU)
    np.testing.assert_array_equal(call.run()[0], np.arange(2))
    np.testing.assert_array_equal(call.run()[0], np.arange(5))


@pytest.fixture
def session(monkeypatch):
    """A session on this machine's CPU that takes it for a device with such memory."""
    from smartmem_tvm.deploy import inference_session
    from smartmem_tvm.deploy.weights import Machine

    monkeypatch.setattr(inference_session, "pinned_memory", lambda _: CPU)
    monkeypatch.setattr(Machine, "on_cpu", False)
    shape = (3, 4)
    return compile(module(lambda x, y: op.subtract(op.exp(x), y), shape, shape)).session()


def test_a_session_runs_plain_arrays_through_pinned_memory(session):
    random = np.random.default_rng(3)
    results = []
    for number in range(4):
        x, y = random.standard_normal((2, 3, 4)).astype("float32")
        x.setflags(write=False)
        names = [each.name for each in session.functions["main"]]
        found = session.run({names[1]: y, names[0]: x}) if number % 2 else session.run(x, y)
        results.append((found[0], np.exp(x) - y))
    for found, expected in results:  # each in memory of its own
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(session._direct[None], PinnedCall)


def test_other_inputs_take_the_general_way_and_its_refusals(session):
    x = np.ones((3, 4), "float32")
    first = session.run(x, x)[0]
    np.testing.assert_array_equal(session.run(tvm.runtime.tensor(x), x)[0], first)
    np.testing.assert_array_equal(session.run(x.astype("float32", order="F"), x)[0], first)
    for wrong in (x.astype("float64"), x[:2], None):
        with pytest.raises(UserError):
            session.run(x, wrong)
    np.testing.assert_array_equal(session.run(x, x)[0], first)


def test_large_inputs_are_not_pinned(monkeypatch, session):
    from smartmem_tvm.deploy import host_call

    monkeypatch.setattr(host_call, "_MOST_PINNED", 3 * 4 * 4 * 2)
    x = np.ones((3, 4), "float32")
    session.run(x, x)
    assert not session._direct
