# SPDX-License-Identifier: Apache-2.0
"""Kernels measured on borrowed devices, and whose fault it is when a device is lost."""

import os
import signal

import pytest
import tvm
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

import faulty_code
from smartmem_tvm.deploy.judge import judge, untuned_seconds
from smartmem_tvm.deploy.link import linked
from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import borrowed
from smartmem_tvm.remote.borrowed import Borrowed, KernelLost
from smartmem_tvm.remote.session import Session
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.build import plain_code
from smartmem_tvm.tune.faults import failure_of
from smartmem_tvm.tune.kernel import TunableKernel, with_constants, workload
from smartmem_tvm.tune.parameters import parameters, write_parameters
from smartmem_tvm.tune.trace import schedule_of
from tunable_kernels import CASES

TARGET = parse_target("llvm")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(borrowed, "_COOL_DOWN", 0.1)
    monkeypatch.setattr(borrowed, "_RUNNING", 3.0)
    borrowed._attempts.cache_clear()
    yield
    borrowed._attempts.cache_clear()


@pytest.fixture
def lent(shared_tracker, shared_device):
    return Borrowed(shared_tracker.address, "shared", timeout=20, threads=1)


def job(folder, fault=None):
    """A layer norm, or what `faulty_code` puts in its place, as a runner is given it."""
    func = CASES["layer norm"].func()
    if fault is not None:
        body = faulty_code._BODIES[fault](*func.params)
        func = tirx.PrimFunc(func.params, body, func.ret_type).with_attrs(dict(func.attrs))
    file = linked(plain_code(tvm.IRModule({"main": func}), TARGET), TARGET, str(folder))
    write_parameters(parameters(func), folder / "lib.so")
    return file, "cpu"


def kill_session(device):
    (process,) = device.sessions()
    os.kill(process, signal.SIGKILL)


def test_a_candidate_has_the_times_of_the_device(lent, tmp_path):
    times = lent.seconds(job(tmp_path))
    assert len(times) == 5 and times == sorted(times) and 0 < times[0] < 1


@pytest.mark.parametrize(("fault", "says"), [("crashes", "was lost during a kernel"), ("hangs", "did not finish")])
def test_what_loses_every_device_is_at_fault_itself(lent, tmp_path, fault, says):
    (tmp_path / "bad").mkdir()
    with pytest.raises(KernelLost, match=says) as error:
        lent.seconds(job(tmp_path / "bad", fault))
    assert failure_of(str(error.value)).candidate
    assert len(lent.seconds(job(tmp_path))) == 5  # the server is none the worse


def test_a_device_that_is_lost_once_costs_a_candidate_nothing(lent, tmp_path, shared_device, monkeypatch):
    tensors, tries = borrowed.arguments, []

    def lost_at_first(*told):
        tries.append(told)
        if len(tries) == 1:
            kill_session(shared_device)
        return tensors(*told)

    monkeypatch.setattr(borrowed, "arguments", lost_at_first)
    assert len(lent.seconds(job(tmp_path))) == 5
    assert len(tries) == 2


def test_what_is_lost_on_the_way_is_no_fault_of_a_candidate(lent, tmp_path, shared_device, monkeypatch):
    upload = Session.upload

    def cut(session, *file):
        kill_session(shared_device)
        return upload(session, *file)

    monkeypatch.setattr(Session, "upload", cut)
    with pytest.raises(UserError, match=r"lost during the upload of lib\.so") as error:
        lent.seconds(job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_without_a_device_nobody_is_at_fault(shared_tracker, tmp_path):
    with pytest.raises(UserError, match=r"No device at tracker .* has the key none") as error:
        Borrowed(shared_tracker.address, "none", timeout=0.1).seconds(job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_a_device_that_hangs_on_the_way_is_the_machine_s_fault(lent, tmp_path, shared_device, monkeypatch):
    """In a step that has no time limit of its own."""
    monkeypatch.setattr(borrowed, "_CANDIDATE", 0.5)
    ask = Session.device

    def hanging(session, kind):
        (process,) = shared_device.sessions()
        os.kill(process, signal.SIGSTOP)
        return ask(session, kind)

    monkeypatch.setattr(Session, "device", hanging)
    with pytest.raises(UserError, match=r"did not finish all that was to be done there within 0\.5 s") as error:
        lent.seconds(job(tmp_path))
    assert not failure_of(str(error.value)).candidate


def test_kernels_that_are_compared_have_the_time_of_all(lent, monkeypatch):
    monkeypatch.setattr(borrowed, "in_turns", lambda clocks, _: [1.0] * len(clocks))
    limits, limit = [], Session.limit
    monkeypatch.setattr(Session, "limit", lambda session, *told: limits.append(told) or limit(session, *told))
    assert lent.at(TARGET, lambda place: place.seconds([None, None, None])) == [1.0, 1.0, 1.0]
    assert (3 * borrowed._RUNNING, "a kernel") in limits


def test_verdicts_are_found_on_one_device(lent):
    case = CASES["matmul with a weight"]
    mod = workload(with_constants(case.func(), case.constants))
    kernel = TunableKernel.of(mod["main"], TARGET)
    trace = schedule_of(mod, kernel.seed, kernel.space).trace
    record = ms.database.TuningRecord(
        trace, ms.database.Workload(mod), [1.0], TARGET, ms.arg_info.ArgInfo.from_entry_func(mod)
    )
    first, second = judge(mod, TARGET, [record, record], lent.at)
    assert not first.wrong and 0 < first.seconds < 1 and first.untuned == second.untuned
    assert 0 < untuned_seconds(mod, TARGET, lent.at) < 1
