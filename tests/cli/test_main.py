# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: help, exit codes, what goes to stdout and what to stderr."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tvm

from matmul_model import matmuls
from smartmem_tvm import __version__
from smartmem_tvm.cli import COMMANDS, INTERRUPTED, PIPE_CLOSED, doctor
from smartmem_tvm.errors import UserError

COMMAND = [sys.executable, "-m", "smartmem_tvm"]


def test_help_shows_every_command_with_an_example(smartmem):
    outcome = smartmem("--help")
    assert outcome.code == 0
    for module in COMMANDS:
        assert any(line.split(" ")[4:5] == [module.NAME] for line in outcome.out.splitlines())
        page = smartmem(module.NAME, "--help")
        assert page.code == 0
        assert f"example:\n  smartmem {module.NAME}" in page.out
        assert "--json" in page.out and "--traceback" in page.out


def processor_seconds():
    """Of the processes that have ended, which a busy machine does not change much."""
    used = os.times()
    return used.children_user + used.children_system


def test_help_needs_no_tvm_and_little_time():
    code = "import sys; from smartmem_tvm.cli import main; main(['--help']); sys.exit('tvm' in sys.modules)"
    seconds = []
    for _ in range(3):
        start = processor_seconds()
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
        seconds.append(processor_seconds() - start)
    assert min(seconds) < 0.5


def test_module_and_version():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"smartmem {__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("stats",), ("run", "m.onnx", "--repeat", "0")])
def test_wrong_usage(smartmem, arguments):
    outcome = smartmem(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("usage: smartmem")
    assert outcome.out == ""


def fail_with(monkeypatch, error):
    """Let ``smartmem doctor`` raise."""

    def execute(_args):
        raise error

    monkeypatch.setattr(doctor, "execute", execute)


def test_unexpected_error_is_one_sentence(smartmem, monkeypatch):
    fail_with(monkeypatch, RuntimeError("first line\nsecond line"))
    outcome = smartmem("doctor")
    assert outcome.code == 2
    assert outcome.err == (
        "smartmem: error: unexpected RuntimeError (first line); run again with --traceback and report what it prints.\n"
    )


@pytest.mark.parametrize("order", [("doctor", "--traceback"), ("--traceback", "doctor")])
def test_traceback_on_request(smartmem, monkeypatch, order):
    fail_with(monkeypatch, UserError("the file is bad."))
    outcome = smartmem(*order)
    assert outcome.code == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.endswith("smartmem: error: the file is bad.\n")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("tune", ""), "An argument"),
        (("rpc", "server", "--key", ""), "--key"),
        (("rpc", "server", "--key="), "--key"),
        (("records", "export", "f", "-o", ""), "-o"),
    ],
)
def test_empty_arguments(smartmem, arguments, name):
    outcome = smartmem(*arguments)
    assert outcome.code == 2
    assert outcome.err == f"smartmem: error: {name} is empty; give it a value, or leave it out.\n"


def test_interrupted(smartmem, monkeypatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    outcome = smartmem("doctor")
    assert (outcome.code, outcome.out, outcome.err) == (INTERRUPTED, "", "smartmem: interrupted\n")


def test_sigterm_unwinds(smartmem, monkeypatch):
    def execute(_args):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(doctor, "execute", execute)
    assert smartmem("doctor").code == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def interruptible():
    """As in a terminal: whoever was started in the background of a script inherits that Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_callback_of_tvm(smartmem, monkeypatch, interruptible):
    @tvm.transform.module_pass(opt_level=0)
    def stopped(_mod, _context):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(doctor, "execute", lambda _args: stopped(tvm.IRModule()))
    outcome = smartmem("doctor")
    assert (outcome.code, outcome.err) == (INTERRUPTED, "smartmem: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before
    fail_with(monkeypatch, RuntimeError("of the next command"))
    assert smartmem("doctor").code == 2


@pytest.mark.device
@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_reader_goes_away(arguments):
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait() == PIPE_CLOSED
    assert errors == b""


def test_libraries_cannot_write_to_stdout(monkeypatch, capfd):
    real = doctor.execute

    def execute(args):
        print("from Python")
        os.write(1, b"from C++\n")
        return real(args)

    monkeypatch.setattr(doctor, "execute", execute)
    capfd.readouterr()
    from smartmem_tvm.cli import main

    assert main(["doctor", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["ok"] is True
    assert "from Python" in captured.err and "from C++" in captured.err


def test_wrong_tvm_is_named(smartmem, monkeypatch, model_path):
    monkeypatch.setattr("smartmem_tvm.cli.version_problem", lambda: "tvm-ffi 0.1.15 is the wrong one: pip install it.")
    outcome = smartmem("stats", model_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "smartmem: error: tvm-ffi 0.1.15 is the wrong one: pip install it.\n"


@pytest.mark.parametrize(
    "options", [("run",), ("stats", "--run"), ("bench",), ("profile",), ("tune", "-o", "records.jsonl")]
)
def test_too_many_threads(smartmem, options, tmp_path, monkeypatch):
    """Each of TVM's would keep a core busy."""
    monkeypatch.chdir(tmp_path)
    outcome = smartmem(*options, matmuls(tmp_path / "m.onnx", (8, 8)), "--threads", 99999)
    assert outcome.code == 2 and "99999 threads (--threads, or TVM_NUM_THREADS) are too many" in outcome.err
