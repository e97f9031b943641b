# SPDX-License-Identifier: Apache-2.0
"""A server outlives its sessions, its tracker and bad clients; nothing outlives the server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import tvm

from rpc_processes import COMMAND, PYTHON, connect, device, marked, server, started, tracker, until
from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import wire
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.registration import Registration
from smartmem_tvm.remote.server import Server
from smartmem_tvm.remote.session import DeviceLost, Session, request
from smartmem_tvm.tune.host import usable_cores


def state_of(tracker, key):
    return tracker_state(wire.parse_address(tracker.address)).get(key)


def free(tracker, key):
    return (state := state_of(tracker, key)) is not None and state.free == state.total == 1


def test_it_listens_on_loopback_alone(shared_device):
    host, port = wire.parse_address(shared_device.address)
    assert host == "127.0.0.1"
    listening = Path("/proc/net/tcp").read_text().split("\n")[1:]
    mine = [line.split()[1] for line in listening if line and line.split()[3] == "0A"]
    assert f"0100007F:{port:04X}" in mine and f"00000000:{port:04X}" not in mine


@pytest.mark.parametrize(("told", "threads"), [("", usable_cores()), ("3", 3)])
def test_kernels_run_on_all_cores_unless_it_is_told_otherwise(tmp_path, told, threads):
    with server(tmp_path, TVM_NUM_THREADS=told) as started, connect(started) as session:
        assert session.threads() == threads


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_process_of_its_session(tmp_path, by):
    with server(tmp_path) as started:
        session = connect(started)
        [worker] = started.sessions()
        os.kill(worker, signal.SIGSTOP)  # as busy as can be
        assert started.end(by) == (0 if by != signal.SIGKILL else -by)
        until(lambda: not marked(started.mark), seconds=5)
        session.close()
    if by == signal.SIGKILL:  # it removes nothing, and the next one does
        assert list(tmp_path.glob("smartmem-rpc-*/session-*"))
        with server(tmp_path) as following:
            connect(following).close()
    assert not list(tmp_path.glob("smartmem-rpc-*"))


def test_it_ends_with_the_process_that_started_it(tmp_path):
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)\n"
        "print(child.stdout.read1().decode(), flush=True)\n"
        "child.wait()\n"
    )
    command = (*COMMAND, "rpc", "server", "--with-parent", "--json")
    with started(tmp_path, *command, program=("-c", program)) as parent:
        session = connect(parent)
        assert len(marked(parent.mark)) == 3
        parent.process.kill()
        until(lambda: not marked(parent.mark), seconds=5)
        session.close()


def test_a_tracker_ends_too(tmp_path):
    with tracker(tmp_path) as started:
        tracker_state(wire.parse_address(started.address))
        assert marked(started.mark) == [started.process.pid]
        assert started.end(signal.SIGINT) == 0


def test_clients_of_tvms_own_are_served(shared_tracker, shared_device):
    host, port = wire.parse_address(shared_tracker.address)
    remote = tvm.rpc.connect_tracker(host, port).request("shared", session_timeout=60)
    there = tvm.runtime.tensor([1.0, 2.0], remote.cpu())
    assert there.numpy().tolist() == [1.0, 2.0]
    remote.upload(bytearray(b"abc"), "file.txt")
    assert remote.listdir("") == "file.txt" and remote.download("file.txt") == b"abc"


def test_a_crash_of_a_session_is_that_sessions(tmp_path):
    with server(tmp_path) as started:
        with pytest.raises(DeviceLost, match="what ran there crashed"), connect(started) as session:
            os.kill(started.sessions()[0], signal.SIGSEGV)
            session.kinds()
        with connect(started) as again:
            assert "cpu" in again.kinds()
        assert "SIGSEGV" in started.log.read_text()


def test_nobody_has_to_read_its_log(tmp_path):
    """As when a terminal or a supervisor is gone: sessions begin, and what breaks one does not break the server."""
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, *COMMAND, "rpc", "server", "--with-parent", "--json"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, env=environment, text=True) as process:
        printed = process.stdout.readline()
        while not printed.endswith("}\n"):
            printed += process.stdout.readline()
        address = wire.parse_address(json.loads(printed)["address"])
        with socket.create_connection(address) as first:
            wire.send_int(first, wire.SESSION_MAGIC)
            wire.send_text(first, "client:")
            assert wire.receive_int(first) == wire.SESSION_MAGIC and wire.receive_text(first)
            process.stderr.close()
            first.sendall(b"\x64" + bytes(17))  # a message of a hundred bytes that ends early
        for _ in range(2):
            with request_directly(address) as session:
                assert "cpu" in session.kinds()
                assert list(tmp_path.glob("smartmem-rpc-*/session-*"))
        process.terminate()
        assert process.wait(20) == 0 and not list(tmp_path.glob("smartmem-rpc-*"))


def request_directly(address):
    """A session, as soon as the one before has ended."""
    end = time.monotonic() + 20
    while True:
        try:
            return Session(address, "", "")
        except DeviceLost:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_session_that_cannot_begin_is_that_clients_trouble(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    refusing = Server()
    with socket.create_connection(refusing.address) as client:
        wire.send_int(client, wire.SESSION_MAGIC)
        wire.send_text(client, "client:")
        refusing._accept()
        assert wire.receive_int(client) == wire.SESSION_MAGIC and wire.receive_text(client) == "server:"
        assert client.recv(1) == b""
    assert refusing._session is None
    refusing._close()


def test_sessions_see_no_files_of_each_other(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("abc")
    with server(tmp_path) as started:
        for name in ("first", "second"):
            with connect(started) as session:
                assert session.upload(file, name) == name
                assert str(session.function("tvm.rpc.server.listdir")("")) == name
        until(lambda: not list(tmp_path.glob("smartmem-rpc-*/*")), seconds=5)


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", wire.SESSION_MAGIC.to_bytes(4, "little") + b"\xff" * 4]
)
def test_who_does_not_speak_the_protocol_is_refused(shared_device, shared_tracker, said):
    with socket.create_connection(wire.parse_address(shared_device.address)) as other:
        other.sendall(said)
        other.settimeout(5)
        with suppress(OSError):  # not connected: it has hung up already, which `recv` below sees
            other.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert other.recv(100) == b""
    with request(shared_tracker.address, "shared", 5) as session:
        assert "cpu" in session.kinds()


def test_a_wrong_match_key_is_refused(shared_device, shared_tracker):
    with pytest.raises(DeviceLost, match="takes no session"):
        Session(wire.parse_address(shared_device.address), "shared", "shared:guessed")
    with request(shared_tracker.address, "shared", 5) as session:
        assert "cpu" in session.kinds()


def test_it_registers_with_a_tracker_that_comes_later_and_with_its_successor(tmp_path):
    with wire.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    with started(tmp_path, *("rpc", "server", "--json", "--tracker", f"127.0.0.1:{port}", "--key", "late")) as late:
        for _ in range(2):
            with tracker(tmp_path, "--port", str(port)) as up:
                until(lambda up=up: free(up, "late"), seconds=10)
                with request(up.address, "late", 5) as session:
                    assert session.address == late.address


def test_a_session_outlives_the_tracker(tmp_path):
    with tracker(tmp_path) as first, device(tmp_path, first, "key"):
        port = first.address.rpartition(":")[2]
        with request(first.address, "key", 10) as session:
            first.end()
            assert "cpu" in session.kinds()
            with tracker(tmp_path, "--port", port) as second:
                # It is known again, and lent to no client.
                until(lambda: (state := state_of(second, "key")) and state.total, seconds=10)
                assert state_of(second, "key").busy == 1
                session.close()
                until(lambda: free(second, "key"), seconds=5)


def test_it_registers_within_a_second(tmp_path, shared_tracker):
    """The rest is for a busy machine; TVM's server takes over five seconds on an idle one."""
    start = time.monotonic()
    with device(tmp_path, shared_tracker, "quick"):
        until(lambda: free(shared_tracker, "quick"), seconds=4)
        assert time.monotonic() - start < 4


def test_importing_the_server_does_not_import_tvm():
    program = "import sys, smartmem_tvm.remote.server;print(sorted({'tvm', 'numpy', 'tvm_ffi'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_device_that_was_asked_for_and_not_fetched_is_offered_again(shared_tracker):
    offered = Registration(wire.parse_address(shared_tracker.address), "forgotten", None, 1)
    now = time.monotonic()
    offered.update(now, free=True)
    first = offered.match_key
    with wire.Connection(wire.parse_address(shared_tracker.address), 5) as client:
        assert client.ask(wire.Code.REQUEST, "forgotten", "", 1)[1] == ["127.0.0.1", 1, first]
    for seconds in (2, 4, 7):
        offered.update(now + seconds, free=True)
        assert offered.match_key == first and not free(shared_tracker, "forgotten")
    offered.update(now + 9, free=True)
    assert offered.match_key != first and free(shared_tracker, "forgotten")
    offered.link.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "two words"}, "has a space"),
        ({"tracker": ("127.0.0.1", 1)}, "give --key"),
        ({"tracker": ("192.0.2.1", 1), "key": "k"}, "give --host"),
        ({"host": "192.0.2.1"}, "give --host an address of this machine"),
    ],
)
def test_what_cannot_be_served_is_named(arguments, message):
    with pytest.raises(UserError, match=message):
        Server(**arguments)
