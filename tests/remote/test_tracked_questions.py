# SPDX-License-Identifier: Apache-2.0
"""Kernels of a question on a device of a tracker: measured there, again if it is lost, and not if they crash it."""

import math
import os
import signal
from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import tirx

from at_once import executor
from helpers import constant, legal, nodes, op
from rpc_processes import device
from smartmem_tvm.deploy import kernel_latency
from smartmem_tvm.deploy.fill_profiles import _question, measured_by, open_store
from smartmem_tvm.deploy.kernel_latency import Kernels
from smartmem_tvm.deploy.texture_times import TextureTimes
from smartmem_tvm.deploy.weights import Weight
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.faults import machine_fault
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.remote.session import Session
from smartmem_tvm.remote.tracked_devices import KernelLost, TrackedDevices
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.layout.place_textures.place_textures import PlaceTextures


@pytest.fixture
def lent(shared_tracker, shared_device):
    """A function that lends the shared device for a target."""

    def for_target(target, tries=3, key="shared", **options):
        return TrackedDevices(shared_tracker.address, key, target, tries=tries, cool_down=0.1, timeout=20, **options)

    return for_target


def measured(devices, functions):
    """Seconds of each function, as `measured_by` asks for them in a worker."""
    return _question(devices, tvm.IRModule({f"kernel{n}": func for n, func in enumerate(functions)}))[1]


def kernels(*sizes):
    """Square matmuls."""
    return [emit(node.kernel) for n in sizes for node in nodes(legal(op.matmul, (n, n), (n, n)))]


@pytest.mark.device
@pytest.mark.parametrize("target", [host_target(), parse_target("opencl")], ids=["cpu", "opencl"])
def test_the_order_of_the_results_is_that_of_the_kernels(lent, shared_device, target):
    fast, slow, again = measured(lent(target), kernels(16, 256, 16))
    assert 0 < fast < slow / 4 and again < slow / 4
    servers = Counter()
    assert len(list(measured_by(executor(target, devices=lent(target)), servers)([kernels(16)], math.inf))) == 1
    assert servers == {shared_device.address: 1}


def test_kernels_run_on_so_many_threads(lent, shared_tracker, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(kernel_latency, "in_turns", lambda clocks, _: told.append(threads()) or [1.0] * len(clocks))
    sessions = []
    upload = Session.upload
    monkeypatch.setattr(Session, "upload", lambda self, *given: sessions.append(self) or upload(self, *given))

    def threads():
        return int(sessions[-1].function("runtime.NumThreads")())

    with device(tmp_path, shared_tracker, "threads", TVM_NUM_THREADS="2"):
        for count in (1, 2):
            there = lent(host_target(), key="threads", threads=count)
            measured(there, kernels(16))
        assert told == [1, 2]
        there = lent(host_target(), key="threads", threads=3)
        with pytest.raises(UserError, match=r"runs kernels on at most 2 threads, not on 3: give --threads 2, or start"):
            measured(there, kernels(16))


@pytest.mark.device
def test_textures_are_measured_where_kernels_expect_them(lent):
    target = parse_target("opencl-texture")
    times = TextureTimes(open_store(None, target), target, executor(target, devices=lent(target)))
    mod = FuseOperators()(EliminateLayout()(legal(lambda x: op.nn.softmax(op.matmul(x, constant(64, 64))), (32, 64))))
    with target:
        PlaceTextures(target, TextureTrial(target, measure=times))(mod)
    assert times.failed == 0 and times.measured == times.store.kernels > 2


def test_a_workspace_is_there_before_the_launch(lent):
    """So long a sum of so few results is taken in two steps."""
    target = parse_target("opencl-texture")
    (node,) = nodes(EliminateLayout()(legal(lambda x: op.sum(x, axis=[1]), (4, 1 << 18))))
    times = TextureTimes(open_store(None, target), target, executor(target, devices=lent(target)))
    assert TextureTrial(target, measure=times)(emit(node.kernel)).measured > 0


def test_a_device_that_is_lost_meanwhile_is_tried_again(lent, shared_device, monkeypatch):
    tries = []
    in_turns = kernel_latency.in_turns

    def lost_at_first(clocks, turns):
        tries.append(turns)
        if len(tries) == 1:
            os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return in_turns(clocks, turns)

    monkeypatch.setattr(kernel_latency, "in_turns", lost_at_first)
    there = lent(host_target())
    (seconds,) = measured(there, kernels(32))
    assert 0 < seconds < 1 and len(tries) == 2


def alone(statement) -> Kernels:
    """A function of two numbers in memory."""
    x, y = (tirx.decl_buffer((1,), "float32", name) for name in "xy")
    func = tirx.PrimFunc([x, y], statement(x, y)).with_attr("global_symbol", "it")
    ones = [Weight(tvm.runtime.tensor(np.ones(1, "float32"))) for _ in "xy"]
    return Kernels(tvm.compile(tvm.IRModule({"it": func}), host_target()), {"it": ones})


def far_store(_x, y):
    return tirx.BufferStore(y, tirx.const(1.0, "float32"), [tirx.const(2**42, "int64")])


def endless(x, y):
    return tirx.While(x[0] > 0, tirx.BufferStore(y, y[0] + x[0], [0]))


@pytest.mark.device
@pytest.mark.parametrize(("body", "words"), [(far_store, "what ran there crashed"), (endless, "within 0.5 s")])
def test_kernels_that_lose_every_device_are_at_fault_and_the_next_are_measured(lent, monkeypatch, body, words):
    there = lent(host_target(), tries=2)
    with monkeypatch.context() as patched, pytest.raises(KernelLost, match=words) as error:
        patched.setattr(kernel_latency, "_RUNNING", 0.5)
        there.run(lambda device: kernel_latency.kernel_seconds(device, alone(body)))
    assert machine_fault(str(error.value)) is None
    assert measured(there, kernels(16))[0] > 0


def test_a_device_that_is_lost_before_they_run_is_not_their_fault(lent, shared_device, monkeypatch):
    upload = Session.upload

    def lost(session, *given):
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return upload(session, *given)

    monkeypatch.setattr(Session, "upload", lost)
    there = lent(host_target(), tries=2)
    with pytest.raises(UserError, match="was lost during the upload") as error:
        measured(there, kernels(16))
    assert machine_fault(str(error.value)) is not None


def test_no_device_is_an_error_that_passes_hand_on(lent):
    there = lent(parse_target("opencl-texture"), key="none")

    @tvm.transform.module_pass(opt_level=0, name="test.Asks")
    class Asks:
        def transform_module(self, mod, _):
            executor(there.target, devices=there).result(_question, tvm.IRModule({"kernel0": kernels(16)[0]}), 1.0)

    with pytest.raises(UserError, match="has the key none: use one of"):
        Asks()(tvm.IRModule())


def test_a_clock_that_shows_no_time_is_no_answer(lent, monkeypatch):
    monkeypatch.setattr(kernel_latency, "in_turns", lambda clocks, _: [0.0 for _ in clocks])
    there = lent(host_target())
    with pytest.raises(RuntimeError, match="shows no time"):
        measured(there, kernels(16))


def test_a_device_links_objects_or_says_how_they_are_linked_here(lent, shared_tracker, tmp_path, monkeypatch):
    for name in ("TVM_NDK_CC", "ANDROID_NDK_HOME"):
        monkeypatch.delenv(name, raising=False)
    target = parse_target('{"kind": "llvm", "mtriple": "x86_64-linux-android"}')
    there = lent(target)
    (seconds,) = measured(there, kernels(16))
    assert seconds > 0
    with device(tmp_path, shared_tracker, "bare", PATH=str(tmp_path)):
        there = lent(target, key="bare")
        with pytest.raises(UserError, match=r"cannot load object files .* linked here, by the NDK's compiler"):
            measured(there, kernels(16))
