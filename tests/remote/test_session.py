# SPDX-License-Identifier: Apache-2.0
"""Borrowing a device: what goes wrong there or on the way is one sentence here, and the device is free again."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from cutting_proxy import cutting
from rpc_processes import PYTHON, Started, connect, device, server, started, tracker, until
from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import session as session_module
from smartmem_tvm.remote.about import tvm_version
from smartmem_tvm.remote.borrow import DeviceBusy, DeviceLost
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.session import request
from smartmem_tvm.remote.wire import listen, parse_address


@I.ir_module(s_tir=True)
class Double:
    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                b[v] = a[v] * T.float32(2)


def free(tracker: Started, key: str) -> bool:
    state = tracker_state(parse_address(tracker.address)).get(key)
    return state is not None and state.free == state.total > 0


def hang(process: Started):
    """Stop the process of the session: it answers nothing, as a device whose driver hangs."""
    [worker] = process.sessions()
    os.kill(worker, signal.SIGSTOP)


@pytest.fixture(scope="module")
def own(shared_tracker, tmp_path_factory):
    """A server whose sessions are harmed."""
    with device(tmp_path_factory.mktemp("own"), shared_tracker, "own") as process:
        yield process


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "double.so"
    tvm.compile(Double, target="llvm").export_library(str(path))
    return path


def test_what_is_sent_there_runs_there(shared_tracker, shared_device, library):
    with request(shared_tracker.address, "shared", 10) as session:
        assert session.address == shared_device.address and session.about["tvm"] == tvm_version()
        module = session.load(session.upload(library))
        a = np.arange(8, dtype="float32")
        there, result = (tvm.runtime.tensor(each, session.device("cpu")) for each in (a, np.zeros_like(a)))
        module["double"](there, result)
        np.testing.assert_array_equal(result.numpy(), 2 * a)
        timed = module.time_evaluator("double", session.device("cpu"), number=3)(there, result)
        assert timed.mean > 0
    # Whoever still holds something of it is told, and the device is free all the same.
    with pytest.raises(Exception, match=r"Broken pipe|closed|reset|kReturn"):
        result.numpy()
    until(lambda: free(shared_tracker, "shared"), seconds=5)


def test_an_opencl_device_is_there_too(shared_tracker, shared_device):
    with request(shared_tracker.address, "shared", 10) as session:
        there = tvm.runtime.tensor(np.arange(5.0), session.device("opencl"))
        assert there.numpy().tolist() == [0, 1, 2, 3, 4]


def test_a_device_that_is_not_there_is_named(tmp_path):
    with server(tmp_path, SMARTMEM_OPENCL_LIBRARY="/no/such/library.so") as process, connect(process) as session:
        with pytest.raises(UserError, match=r"no device vulkan:0: compile for what it has \(cpu, opencl\)"):
            session.device("vulkan")
        with pytest.raises(UserError, match=r"no device opencl:0 \(.*/no/such/library\.so"):
            session.device("opencl")
        with pytest.raises(UserError, match=r"has no function no\.such"):
            session.function("no.such")


def test_an_error_there_is_an_error_here_and_the_session_goes_on(shared_tracker, shared_device):
    with request(shared_tracker.address, "shared", 10) as session:
        with pytest.raises(Exception, match=r"missing\.so") as error:
            session.load("missing.so")
        assert not isinstance(error.value, UserError)
        assert "cpu" in session.kinds()


@pytest.fixture
def impatient(monkeypatch):
    """A client that does not wait for who may be starting."""
    monkeypatch.setattr("smartmem_tvm.remote.borrow._ABSENT_SECONDS", 0.2)


def test_a_tracker_that_is_not_there_is_named(impatient):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UserError, match=rf"No tracker answers at 127\.0\.0\.1:{port} .*--port {port}"):
        borrow_for_a_moment(f"127.0.0.1:{port}", "any")
    with pytest.raises(UserError, match="No tracker answers"):
        tracker_state(("127.0.0.1", port))


def borrow_for_a_moment(tracker: str, key: str, timeout: float = 0.5, **options):
    with request(tracker, key, timeout, **options) as session:
        return session.address


def test_a_wrong_key_names_the_right_ones(impatient, tmp_path, shared_tracker, shared_device):
    with pytest.raises(UserError, match=r"has the key shraed: use one of .*shared"):
        borrow_for_a_moment(shared_tracker.address, "shraed")
    with tracker(tmp_path) as empty, pytest.raises(UserError, match=r"rpc server --tracker .* --key lonely"):
        borrow_for_a_moment(empty.address, "lonely")


def test_two_clients_share_a_device_in_turns(shared_tracker, shared_device):
    order = []

    def second():
        with request(shared_tracker.address, "shared", 20):
            order.append("second")

    with request(shared_tracker.address, "shared", 10):
        waiting = threading.Thread(target=second)
        waiting.start()
        until(lambda: tracker_state(parse_address(shared_tracker.address))["shared"].pending == 1, seconds=10)
        with pytest.raises(DeviceBusy, match=r"The device of key shared .* within 0\.2 s \(1 busy, 1 clients before"):
            borrow_for_a_moment(shared_tracker.address, "shared", timeout=0.2)
        order.append("first")
    waiting.join(20)
    assert order == ["first", "second"]


def test_a_call_that_hangs_ends_in_time(shared_tracker, own):
    start = time.monotonic()
    with (
        pytest.raises(DeviceLost, match=r"did not finish the measurement within 0\.5 s") as error,
        request(shared_tracker.address, "own", 10) as session,
        session.limit(0.5, "the measurement"),
    ):
        hang(own)
        session.kinds()
    assert error.value.address == own.address and time.monotonic() - start < 5
    until(lambda: free(shared_tracker, "own") and not own.sessions(), seconds=5)


def test_what_is_freed_on_a_device_that_hangs_is_not_waited_for(shared_tracker, own):
    """TVM waits there with Python's lock held, so that no other thread of this process could stop it."""
    start = time.monotonic()
    with (
        pytest.raises(DeviceLost, match=r"did not finish the measurement within 0\.2 s"),
        request(shared_tracker.address, "own", 10) as session,
        session.limit(0.2, "the measurement"),
    ):
        tensor = tvm.runtime.tensor(np.zeros(4), session.device("cpu"))
        hang(own)
        del tensor
        assert 0.2 <= time.monotonic() - start < 3
        session.kinds()
    until(lambda: free(shared_tracker, "own") and not own.sessions(), seconds=5)


def test_a_session_that_hangs_is_ended_by_the_server(shared_tracker, own):
    start = time.monotonic()
    with (
        pytest.raises(DeviceLost, match="did not finish its session in time"),
        request(shared_tracker.address, "own", 10, limit=0.7) as session,
    ):
        hang(own)
        session.kinds()
    assert 0.7 <= time.monotonic() - start < 2.5  # before the client would have cut the line itself
    until(lambda: free(shared_tracker, "own") and not own.sessions(), seconds=5)


def test_a_limit_too_short_for_a_session_is_named_and_not_tried_for_long(shared_tracker, own):
    before = own.log.read_text().count("Session of")
    with (
        pytest.raises(DeviceLost, match=r"limit of 0\.001 s|within 0\.001 s|session in time") as error,
        request(shared_tracker.address, "own", 20, limit=0.001) as session,
    ):
        session.kinds()
    assert error.value.address == own.address
    assert own.log.read_text().count("Session of") <= before + 2
    until(lambda: free(shared_tracker, "own") and not own.sessions(), seconds=10)


def test_a_server_that_hangs_as_a_whole_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.remote.session._CONNECT_SECONDS", 0.5)
    with tracker(tmp_path) as trackers, device(tmp_path, trackers, "stuck") as stuck:
        until(lambda: free(trackers, "stuck"))
        stuck.process.send_signal(signal.SIGSTOP)
        with pytest.raises(DeviceLost, match=r"did not finish the greeting within 0\.5 s"):
            borrow_for_a_moment(trackers.address, "stuck", timeout=0.1)
        stuck.process.send_signal(signal.SIGCONT)


def test_a_server_killed_in_a_call_is_named(tmp_path, shared_tracker):
    with device(tmp_path, shared_tracker, "mortal") as mortal:
        with (
            pytest.raises(DeviceLost, match=rf"{mortal.address} \(key mortal\) was lost during the session"),
            request(shared_tracker.address, "mortal", 10) as session,
        ):
            hang(mortal)
            threading.Timer(0.3, mortal.process.kill).start()
            session.kinds()
        mortal.process.wait(10)


def test_a_client_that_dies_leaves_a_free_device(shared_tracker, own):
    program = (
        "import sys, time\n"
        "from smartmem_tvm.remote.session import request\n"
        f"with request('{shared_tracker.address}', 'own', 10) as session:\n"
        "    print(session.address, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdout.readline().strip() == own.address
        assert not free(shared_tracker, "own")
        hang(own)  # so that only the server can end it
        client.kill()
    until(lambda: free(shared_tracker, "own") and not own.sessions(), seconds=5)


def test_nobody_waits_for_the_only_device_when_it_is_gone(tmp_path, shared_tracker):
    with device(tmp_path, shared_tracker, "mortal") as only, request(shared_tracker.address, "mortal", 10):
        threading.Timer(0.5, only.process.kill).start()
        start = time.monotonic()
        with pytest.raises(UserError, match="has the key mortal"):
            borrow_for_a_moment(shared_tracker.address, "mortal", timeout=60)
        assert time.monotonic() - start < 20


def test_a_network_cut_in_an_upload_is_named(tmp_path):
    file = tmp_path / "big.bin"
    file.write_bytes(os.urandom(1 << 20))
    with server(tmp_path) as process:
        with (
            cutting(process.address, after=300_000) as address,
            pytest.raises(DeviceLost, match=r"lost during the upload of big\.bin \(1\.0 MB\)"),
            connect(process, address) as session,
        ):
            session.upload(file)
        until(lambda: not process.sessions() and not list(tmp_path.glob("smartmem-rpc-*/*")), seconds=5)
        with connect(process) as session:
            session.upload(file)


def test_a_device_that_hangs_in_an_upload_is_given_up(tmp_path, monkeypatch):
    file = tmp_path / "big.bin"
    file.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(session_module, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(session_module, "_SLOWEST_UPLOAD", 1e9)
    with (
        server(tmp_path) as process,
        pytest.raises(DeviceLost, match=r"did not finish the upload of big\.bin"),
        connect(process) as session,
    ):
        hang(process)
        session.upload(file)


OTHER_TVM = """
import sys
from smartmem_tvm.remote import about
about.tvm_version = lambda: "0.26.0"
from smartmem_tvm.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_another_tvm_there_is_refused(tmp_path, shared_tracker):
    command = ("rpc", "server", "--json", "--tracker", shared_tracker.address, "--key", "old")
    with started(tmp_path, *command, program=("-c", OTHER_TVM)):
        with pytest.raises(UserError, match=rf"another TVM than this machine's {tvm_version()} \(it has 0\.26\.0\)"):
            borrow_for_a_moment(shared_tracker.address, "old", timeout=10)
        with request(shared_tracker.address, "old", 10, any_version=True) as session:
            assert session.about["tvm"] == "0.26.0"


def test_clients_without_a_tracker_wait_for_each_other(tmp_path):
    """Their connections are open at the same time, and each must end its own."""
    found = []

    def use(process, index):
        with connect(process) as session, session.limit(30):
            found.append((index, float(tvm.runtime.tensor([index], session.device("cpu")).numpy()[0])))

    with server(tmp_path) as process:
        threads = [threading.Thread(target=use, args=(process, index)) for index in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    assert sorted(found) == [(index, index) for index in range(8)]


def test_many_threads_have_a_device_each(shared_tracker, shared_device, own):
    found = []

    def use(key):
        for _ in range(5):
            with request(shared_tracker.address, key, 20) as session:
                tensor = tvm.runtime.tensor(np.arange(4.0), session.device("cpu"))
                found.append((key, tensor.numpy().sum()))

    threads = [threading.Thread(target=use, args=(key,)) for key in ("shared", "own") * 2]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(found) == [("own", 6.0)] * 10 + [("shared", 6.0)] * 10
    assert len(list(Path("/dev/fd").iterdir())) < 100
