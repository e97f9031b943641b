# SPDX-License-Identifier: Apache-2.0
"""Trackers and servers in processes of their own, which must all end."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import smartmem_tvm
from smartmem_tvm.remote import session

PYTHON = Path(smartmem_tvm.__file__).resolve().parent.parent
COMMAND = ("-m", "smartmem_tvm")
_MARK = "SMARTMEM_TEST_MARK"
_SECONDS = 60


class Started:
    """A serving process and its descendants, which inherit a mark in their environment.

    Attributes
    ----------
    process : subprocess.Popen
    facts : dict
        The JSON object that it printed.
    log : Path
        The file with its stderr.
    """

    def __init__(self, process: subprocess.Popen, mark: str, log: Path, facts: dict):
        self.process, self.mark, self.log, self.facts = process, mark, log, facts

    @property
    def address(self) -> str:
        return self.facts["address"]

    def sessions(self) -> list[int]:
        """Return the ids of processes that serve a session."""
        return [each for each in marked(self.mark) if each != self.process.pid]

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        self.process.send_signal(by)
        return self.process.wait(_SECONDS)

    def end_all(self):
        """End the process and the processes that TVM's own server leaves behind."""
        self.end(signal.SIGKILL)
        for each in marked(self.mark):
            os.kill(each, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Return the ids of live processes with a mark."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended, or is another user's
    return found


def until(condition, seconds=_SECONDS):
    """Wait until `condition` returns a true value, and return that."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)
    return value


@contextmanager
def started(folder: Path, *arguments: str, program=COMMAND, python=(sys.executable,), **variables: str):
    """Yield a `Started` of this package's command; afterwards check that all its processes have ended."""
    mark = secrets.token_hex(8)
    log = folder / f"{mark}.log"
    path = os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables, _MARK: mark, "TMPDIR": str(folder)}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*python, *program, *arguments], stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
    with process:
        try:
            facts = _facts(process) if "--json" in arguments else {}
            assert facts or "--json" not in arguments, log.read_text()
            yield Started(process, mark, log, facts)
            if process.poll() is None:
                process.terminate()
                # The latter if it was about to begin.
                assert process.wait(_SECONDS) in (0, -signal.SIGTERM), log.read_text()
            until(lambda: not marked(mark), seconds=5)
        finally:
            for each in marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def _facts(process: subprocess.Popen) -> dict:
    """Return the JSON object that a process prints before it serves."""
    printed = ""
    for line in process.stdout:
        printed += line
        if line.rstrip() == "}":
            return json.loads(printed)
    return {}


def tracker(folder: Path, *options: str):
    """Start a tracker, as `started`."""
    return started(folder, "rpc", "tracker", "--json", *options)


def server(folder: Path, *options: str, **given):
    """Start a server, as `started`."""
    return started(folder, "rpc", "server", "--json", *options, **given)


@contextmanager
def device(folder: Path, tracker: Started, key: str, **given):
    """Start a server that has registered with a tracker."""
    with server(folder, "--tracker", tracker.address, "--key", key, **given) as started:
        until(lambda: "Registered" in started.log.read_text())
        yield started


def connect(server: Started, address: str = "") -> session.Session:
    """Open a session, by default at the server's own address; the first one may wait long for the import of TVM."""
    with patch.object(session, "_CONNECT_SECONDS", _SECONDS):
        return session.Session(session.parse_address(address or server.address), "", "")
