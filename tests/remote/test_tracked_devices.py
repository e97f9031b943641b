# SPDX-License-Identifier: Apache-2.0
"""Work on devices of a key: begun again on another one when one is lost, and whose fault it is when one is lost."""

import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
import tvm
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

import faulty_code
from rpc_processes import device, until
from smartmem_tvm.deploy.judge import judge, untuned_seconds
from smartmem_tvm.deploy.link import linked
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.job_devices import Deadlines
from smartmem_tvm.remote import tracked_devices
from smartmem_tvm.remote.borrow import DeviceBusy, DeviceLost
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.session import Session, request
from smartmem_tvm.remote.tracked_devices import KernelLost, TrackedDevices, cooling
from smartmem_tvm.remote.wire import parse_address
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune import measure_candidates
from smartmem_tvm.tune.build_candidates import plain_code
from smartmem_tvm.tune.candidate_faults import failure_of
from smartmem_tvm.tune.measure_candidates import candidate_seconds
from smartmem_tvm.tune.parameters import parameters, write_parameters
from smartmem_tvm.tune.trace import schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target("llvm")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Kernels that hang are given up soon, and no test is told what another one has lost."""
    monkeypatch.setattr(tracked_devices, "_RUNNING", 3.0)
    cooling.clear()
    yield
    cooling.clear()


@pytest.fixture(scope="module")
def two(shared_tracker, tmp_path_factory):
    """Two devices of one key, by address."""
    folder = tmp_path_factory.mktemp("two")
    with device(folder, shared_tracker, "two") as first, device(folder, shared_tracker, "two") as second:
        yield {each.address: each for each in (first, second)}


def test_a_device_that_hangs_is_left_and_another_taken(shared_tracker, two):
    tried = []

    def work(session):
        tried.append(session.address)
        if len(tried) == 1:
            os.kill(two[session.address].sessions()[0], signal.SIGSTOP)
        with session.limit(0.5):
            return session.kinds()

    devices = TrackedDevices(shared_tracker.address, "two", cool_down=30, timeout=20)
    assert "cpu" in devices.with_session(work)
    assert set(tried) == set(two)
    assert list(cooling) == [tried[0]]
    # For as long as it cools down, work goes to the other one.
    assert devices.with_session(lambda session: session.address) == tried[1]


def test_what_one_learns_counts_for_those_who_wait(shared_tracker, two):
    devices = TrackedDevices(shared_tracker.address, "two", cool_down=30, timeout=20)
    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        first, second = (held.enter_context(request(shared_tracker.address, "two", 20)) for _ in two)
        waiting = pool.submit(devices.with_session, lambda session: session.address)
        until(lambda: tracker_state(parse_address(shared_tracker.address))["two"].pending == 1)
        cooling[first.address] = time.monotonic() + 30
        first.close()
        time.sleep(0.5)
        second.close()
        assert waiting.result(20) == second.address


def test_a_device_that_is_the_only_one_is_waited_for(shared_tracker, shared_device):
    times = []

    def work(session):
        times.append(time.monotonic())
        if len(times) < 3:
            os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    assert TrackedDevices(shared_tracker.address, "shared", cool_down=0.4).with_session(work)
    assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(times))


def test_the_last_error_is_the_callers(shared_tracker, shared_device):
    tries = []

    def work(session):
        tries.append(session.address)
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    with pytest.raises(DeviceLost, match=shared_device.address):
        TrackedDevices(shared_tracker.address, "shared", tries=2, cool_down=0.1).with_session(work)
    assert len(tries) == 2


def test_an_error_of_the_work_is_not_tried_again(shared_tracker, shared_device):
    tries = []

    def work(session):
        tries.append(session.address)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        TrackedDevices(shared_tracker.address, "shared").with_session(work)
    assert len(tries) == 1


def test_a_device_that_cools_down_for_too_long_is_not_waited_for(shared_tracker, shared_device):
    devices = TrackedDevices(shared_tracker.address, "shared", tries=2, cool_down=60, timeout=0.5)

    def work(session):
        os.kill(shared_device.sessions()[0], signal.SIGKILL)
        return session.kinds()

    with pytest.raises(DeviceBusy, match=r"within 0\.5 s .*1 left alone after an error"):
        devices.with_session(work)


@pytest.fixture
def lent(shared_tracker, shared_device):
    return TrackedDevices(shared_tracker.address, "shared", TARGET, timeout=20, threads=1, tries=2, cool_down=0.1)


def job(folder, fault=None):
    """A layer norm, or what `faulty_code` puts in its place, as a runner is given it."""
    func = CASES["layer norm"].func()
    if fault is not None:
        body = faulty_code._BODIES[fault](*func.params)
        func = tirx.PrimFunc(func.params, body, func.ret_type).with_attrs(dict(func.attrs))
    file = linked(plain_code(tvm.IRModule({"main": func}), TARGET), TARGET, str(folder))
    write_parameters(parameters(func), folder / "lib.so")
    return file


def kill_session(device):
    (process,) = device.sessions()
    os.kill(process, signal.SIGKILL)


def test_a_candidate_has_the_times_of_the_device(lent, tmp_path):
    times = candidate_seconds(lent, job(tmp_path))
    assert len(times) == 5 and times == sorted(times) and 0 < times[0] < 1


@pytest.mark.device
@pytest.mark.parametrize(("fault", "says"), [("crashes", "was lost during a kernel"), ("hangs", "did not finish")])
def test_what_loses_every_device_is_at_fault_itself(lent, tmp_path, fault, says):
    (tmp_path / "bad").mkdir()
    with pytest.raises(KernelLost, match=says) as error:
        candidate_seconds(lent, job(tmp_path / "bad", fault))
    assert failure_of(str(error.value)).candidate
    assert len(candidate_seconds(lent, job(tmp_path))) == 5  # the server is none the worse


def test_a_device_that_is_lost_once_costs_a_candidate_nothing(lent, tmp_path, shared_device, monkeypatch):
    tensors, tries = measure_candidates.arguments, []

    def lost_at_first(*told):
        tries.append(told)
        if len(tries) == 1:
            kill_session(shared_device)
        return tensors(*told)

    monkeypatch.setattr(measure_candidates, "arguments", lost_at_first)
    assert len(candidate_seconds(lent, job(tmp_path))) == 5
    assert len(tries) == 2


def test_what_is_lost_on_the_way_is_no_fault_of_a_candidate(lent, tmp_path, shared_device, monkeypatch):
    upload = Session.upload

    def cut(session, *file):
        kill_session(shared_device)
        return upload(session, *file)

    monkeypatch.setattr(Session, "upload", cut)
    with pytest.raises(UserError, match=r"lost during the upload of lib\.so") as error:
        candidate_seconds(lent, job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_without_a_device_nobody_is_at_fault(shared_tracker, tmp_path):
    with pytest.raises(UserError, match=r"No device at tracker .* has the key none") as error:
        candidate_seconds(TrackedDevices(shared_tracker.address, "none", TARGET, timeout=0.1), job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_a_device_that_hangs_on_the_way_is_the_machine_s_fault(lent, tmp_path, shared_device, monkeypatch):
    """In a step that has no time limit of its own."""
    lent = replace(lent, limits=Deadlines(candidate=0.5, question=0.5, verdict=0.5))
    ask = Session.device

    def hanging(session, kind):
        (process,) = shared_device.sessions()
        os.kill(process, signal.SIGSTOP)
        return ask(session, kind)

    monkeypatch.setattr(Session, "device", hanging)
    with pytest.raises(UserError, match=r"did not finish all that was to be done there within 0\.5 s") as error:
        candidate_seconds(lent, job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_kernels_that_are_compared_have_the_time_of_all(lent, monkeypatch):
    limits, limit = [], Session.limit
    monkeypatch.setattr(Session, "limit", lambda session, *told: limits.append(told) or limit(session, *told))

    def run(device):
        with device.running(3):
            return True

    assert lent.run(run)
    assert (3 * tracked_devices._RUNNING, "a kernel") in limits


def test_verdicts_are_found_on_one_device(lent):
    case = CASES["matmul with a weight"]
    mod = workload(with_constants(case.func(), case.constants))
    kernel = TunableKernel.of(mod["main"], TARGET)
    trace = schedule_of(mod, kernel.seed, kernel.space).trace
    record = ms.database.TuningRecord(
        trace, ms.database.Workload(mod), [1.0], TARGET, ms.arg_info.ArgInfo.from_entry_func(mod)
    )
    first, second = judge(mod, TARGET, [record, record], lent)
    assert not first.wrong and 0 < first.seconds < 1 and first.untuned == second.untuned
    assert 0 < untuned_seconds(mod, TARGET, lent) < 1
