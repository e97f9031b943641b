# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune`` on devices of a tracker: all of them work, and what becomes of them loses nothing."""

import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest

from matmul_model import matmuls
from rpc_processes import device, tracker, until
from smartmem_tvm.remote.wire import parse_address

pytestmark = pytest.mark.slow
TRIALS = ("--effort", "rapid", "--trials", 8)


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory):
    return matmuls(tmp_path_factory.mktemp("two") / "two.onnx", (64, 96), (96, 80))


def where(started, key="here"):
    return ("--tracker", started.address, "--key", key, "--timeout", 20)


def lines(records):
    return records.read_text().count('"trace"') if records.exists() else 0


@contextmanager
def meanwhile(action):
    """Do something beside what is inside; its error is that of the test."""
    errors = []

    def act():
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not errors, errors


def check(smartmem, records, data, trials=8):
    """Every candidate is on record, and no other."""
    assert all(kernel["trials"] == trials and not kernel["failed"] for kernel in data["kernels"]), data["kernels"]
    assert smartmem("records", "check", records).code == 0


@pytest.mark.parametrize("target", ["cpu", "opencl-texture"])
def test_both_devices_work_and_what_they_found_is_compiled_and_measured(smartmem, tmp_path, target):
    model, records = matmuls(tmp_path / "model.onnx", (32, 64), (64, 24)), tmp_path / "found.jsonl"
    with tracker(tmp_path) as t, device(tmp_path, t, "here") as one, device(tmp_path, t, "here") as two:
        tuned = smartmem("tune", model, "--target", target, *where(t), *TRIALS, "-o", records, "--json")
        assert tuned.code == 0, tuned.err
        check(smartmem, records, tuned.data)
        assert records.read_text().count('"winner"') == len(tuned.data["kernels"]) == 2
        for each in (one, two):
            assert each.log.read_text().count("session") > 2, each.log.read_text()
        out = tmp_path / "out"
        compiled = smartmem("compile", model, "--target", target, "--records", records, "-o", out, "--json")
        assert compiled.code == 0, compiled.err
        faster = sum(kernel["gain"] > 1 for kernel in tuned.data["kernels"])
        assert compiled.data["manifest"]["tuning"]["tuned"] == faster
        measured = smartmem("measure", out, "--tracker", t.address, "--key", "here", "--runs", 3, "--json")
        assert measured.code == 0 and measured.data["correct"], measured.err


def test_a_server_that_is_killed_and_a_tracker_that_is_restarted_cost_nothing(smartmem, two_kernels, tmp_path):
    records = tmp_path / "found.jsonl"
    with ExitStack() as stack:
        t = stack.enter_context(tracker(tmp_path))
        first = stack.enter_context(device(tmp_path, t, "here"))

        def harm():
            until(lambda: lines(records) >= 3)
            first.end(signal.SIGKILL)
            stack.enter_context(device(tmp_path, t, "here"))
            now = lines(records)
            until(lambda: lines(records) >= now + 3)
            t.end()
            stack.enter_context(tracker(tmp_path, "--port", str(parse_address(t.address)[1])))

        with meanwhile(harm):
            tuned = smartmem("tune", two_kernels, *where(t), *TRIALS, "-o", records, "--json")
        assert tuned.code == 0, tuned.err
        check(smartmem, records, tuned.data)


def test_without_any_device_left_it_ends_and_the_same_command_goes_on(smartmem, two_kernels, tmp_path):
    records = tmp_path / "found.jsonl"
    with tracker(tmp_path) as t:
        more = ("--effort", "rapid", "--trials", 24, "-o", records, "--json")
        command = ("tune", two_kernels, "--tracker", t.address, "--key", "here", *more)
        with device(tmp_path, t, "here") as only, meanwhile(lambda: (until(lambda: lines(records)), only.end())):
            ended = smartmem(*command, "--timeout", 0.5)
        assert ended.code == 2 and "No device at tracker" in ended.err and "run the command again" in ended.err
        before = lines(records)
        assert 0 < before < 48 and smartmem("records", "check", records).code == 0
        with device(tmp_path, t, "here"):
            tuned = smartmem(*command, "--timeout", 20)
        assert tuned.code == 0, tuned.err
        check(smartmem, records, tuned.data, trials=24)
        assert sum(kernel["tried_now"] for kernel in tuned.data["kernels"]) == 48 - before


def test_two_clients_share_a_device(smartmem, two_kernels, tmp_path):
    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "theirs.jsonl"
    with tracker(tmp_path) as t, device(tmp_path, t, "here"):
        words = ["tune", two_kernels, *where(t), *TRIALS, "--json"]
        other = [sys.executable, "-m", "smartmem_tvm", *map(str, words), "-o", str(theirs), "--seed", "1"]
        with subprocess.Popen(other, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            tuned = smartmem(*words, "-o", mine)
            assert process.wait(120) == 0, process.stderr.read()
        assert tuned.code == 0, tuned.err
        check(smartmem, mine, tuned.data)
        assert lines(theirs) == 16


def test_refusals_name_the_remedy(smartmem, two_kernels, tmp_path):
    with tracker(tmp_path) as t, device(tmp_path, t, "here", TVM_NUM_THREADS="2"):
        words = ("tune", two_kernels, "-o", tmp_path / "found.jsonl")
        for more, says in (
            (("--tracker", t.address), "Option --tracker needs --key"),
            (("--key", "here"), "Option --key needs --tracker"),
            ((*where(t, "other"),), "has the key other: use one of here"),
            ((*where(t), "--cores", "0"), "leave one of them out"),
            ((*where(t), "--threads", "3"), "on at most 2 threads, not on 3: give --threads 2, or start it with"),
            ((*where(t), "--target", "cuda"), "has no device cuda"),
            ((*where(t), "--target", '{"kind":"llvm","mtriple":"aarch64-linux-gnu"}'), "compiled for aarch64"),
        ):
            refused = smartmem(*words, *more)
            assert refused.code == 2 and says in refused.err, refused.err
