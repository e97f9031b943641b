# SPDX-License-Identifier: Apache-2.0
"""Kernels of a question on a device of a tracker: measured there, again if it is lost, and not if they crash it."""

import os
import signal

import numpy as np
import pytest
import tvm
from tvm import tirx

from helpers import constant, legal, nodes, op
from rpc_processes import device
from smartmem_tvm.deploy.measure import Kernels, compiled
from smartmem_tvm.deploy.profile import open_store
from smartmem_tvm.deploy.texture_times import TextureTimes
from smartmem_tvm.deploy.weights import Weight
from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.remote import profiling
from smartmem_tvm.remote.attempts import Attempts
from smartmem_tvm.remote.profiling import Lent
from smartmem_tvm.remote.session import Session
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.place_textures import PlaceTextures


@pytest.fixture
def lent(shared_tracker, shared_device):
    """A function that lends the shared device for a target."""
    opened = []

    def for_target(target, tries=3, key="shared", **options):
        attempts = Attempts(shared_tracker.address, key, tries=tries, cool_down=0.1, timeout=20)
        opened.append(Lent(attempts, target, **options))
        return opened[-1]

    yield for_target
    for each in opened:
        each.__exit__()


def kernels(*sizes):
    """Square matmuls."""
    return [emit(node.kernel) for n in sizes for node in nodes(legal(op.matmul, (n, n), (n, n)))]


@pytest.mark.parametrize("target", [host_target(), parse_target("opencl")], ids=["cpu", "opencl"])
def test_the_order_of_the_results_is_that_of_the_kernels(lent, shared_device, target):
    there = lent(target)
    fast, slow, again = there.seconds(there.prepare(compiled(kernels(16, 256, 16), target)))
    assert 0 < fast < slow / 4 and again < slow / 4
    assert there.measured == {shared_device.address: 1}


def test_kernels_run_on_so_many_threads(lent, shared_tracker, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(profiling, "in_turns", lambda clocks, _: told.append(threads()) or [1.0] * len(clocks))
    sessions = []
    upload = Session.upload
    monkeypatch.setattr(Session, "upload", lambda self, *given: sessions.append(self) or upload(self, *given))

    def threads():
        return int(sessions[-1].function("runtime.NumThreads")())

    with device(tmp_path, shared_tracker, "threads", TVM_NUM_THREADS="2"):
        for count in (1, 2):
            there = lent(host_target(), key="threads", threads=count)
            there.seconds(there.prepare(compiled(kernels(16), host_target())))
        assert told == [1, 2]
        there = lent(host_target(), key="threads", threads=3)
        with pytest.raises(UserError, match=r"runs kernels on at most 2 threads, not on 3: give --threads 2, or start"):
            there.seconds(there.prepare(compiled(kernels(16), host_target())))


def test_textures_are_measured_where_kernels_expect_them(lent):
    target = parse_target("opencl-texture")
    times = TextureTimes(open_store(None, target), target, elsewhere=lent(target))
    mod = FuseOperators()(EliminateLayout()(legal(lambda x: op.nn.softmax(op.matmul(x, constant(64, 64))), (32, 64))))
    with target:
        PlaceTextures(target, TextureTrial(target, measure=times))(mod)
    assert times.failed == 0 and times.measured == times.store.kernels > 2


def test_a_workspace_is_there_before_the_launch(lent):
    """So long a sum of so few results is taken in two steps."""
    target = parse_target("opencl-texture")
    (node,) = nodes(EliminateLayout()(legal(lambda x: op.sum(x, axis=[1]), (4, 1 << 18))))
    times = TextureTimes(open_store(None, target), target, elsewhere=lent(target))
    assert TextureTrial(target, measure=times)(emit(node.kernel)).measured > 0


def test_one_message_a_reading_and_sets_of_arguments_take_turns():
    made, called = [], []

    class Code:
        def time_evaluator(self, name, device, number, repeat):
            made.append((name, number, repeat))
            return lambda *arguments: called.append(arguments) or tvm.runtime.module.BenchmarkResult([1e-3])

    clock = profiling._clock(Code(), "kernel0", None, [(1, 2), (3, 4)])
    assert [clock(8), clock(8), clock(8), clock(1)] == [8e-3, 8e-3, 8e-3, 1e-3]
    assert made == [("kernel0", 8, 1), ("kernel0", 1, 1)]
    assert called == [(1, 2), (3, 4), (1, 2), (3, 4)]


def test_a_device_that_is_lost_meanwhile_is_tried_again(lent, shared_device, monkeypatch):
    tries = []
    measure = profiling.in_turns

    def lost_at_first(clocks, turns):
        tries.append(turns)
        if len(tries) == 1:
            os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return measure(clocks, turns)

    monkeypatch.setattr(profiling, "in_turns", lost_at_first)
    there = lent(host_target())
    (seconds,) = there.seconds(there.prepare(compiled(kernels(32), host_target())))
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


@pytest.mark.parametrize(("body", "words"), [(far_store, "what ran there crashed"), (endless, "within 0.5 s")])
def test_kernels_that_lose_every_device_are_at_fault_and_the_next_are_measured(lent, body, words):
    there = lent(host_target(), tries=2, limit=0.5)
    with pytest.raises(RuntimeError, match=words):
        there.seconds(there.prepare(alone(body)))
    there = lent(host_target())
    assert there.seconds(there.prepare(compiled(kernels(16), host_target())))[0] > 0


def test_a_device_that_is_lost_before_they_run_is_not_their_fault(lent, shared_device, monkeypatch):
    upload = Session.upload

    def lost(session, *given):
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return upload(session, *given)

    monkeypatch.setattr(Session, "upload", lost)
    there = lent(host_target(), tries=2)
    with pytest.raises(UserError, match="was lost during the upload"):
        there.seconds(there.prepare(compiled(kernels(16), host_target())))


def test_no_device_is_an_error_that_passes_hand_on(lent):
    there = lent(parse_target("opencl-texture"), key="none")

    @tvm.transform.module_pass(opt_level=0, name="test.Asks")
    class Asks:
        def transform_module(self, mod, _):
            there.seconds(there.prepare(compiled(kernels(16), parse_target("opencl"))))

    with pytest.raises(UserError, match="has the key none: use one of"):
        Asks()(tvm.IRModule())


def test_a_clock_that_shows_no_time_is_no_answer(lent, monkeypatch):
    monkeypatch.setattr(profiling, "in_turns", lambda clocks, _: [0.0 for _ in clocks])
    there = lent(host_target())
    with pytest.raises(RuntimeError, match="shows no time"):
        there.seconds(there.prepare(compiled(kernels(16), host_target())))


def test_a_device_links_objects_or_says_how_they_are_linked_here(lent, shared_tracker, tmp_path, monkeypatch):
    for name in ("TVM_NDK_CC", "ANDROID_NDK_HOME"):
        monkeypatch.delenv(name, raising=False)
    target = parse_target('{"kind": "llvm", "mtriple": "x86_64-linux-android"}')
    there = lent(target)
    (seconds,) = there.seconds(there.prepare(compiled(kernels(16), target)))
    assert seconds > 0
    with device(tmp_path, shared_tracker, "bare", PATH=str(tmp_path)):
        there = lent(target, key="bare")
        with pytest.raises(UserError, match=r"cannot load object files .* linked here, by the NDK's compiler"):
            there.seconds(there.prepare(compiled(kernels(16), target)))
