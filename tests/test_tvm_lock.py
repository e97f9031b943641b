# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import threading

import pytest

from server_threads import Server
from smartmem_tvm.tvm_lock import one_at_a_time

# The package itself comes first, as in any program: at the end of a package's import, Python removes it from
# ``sys.modules`` for a moment (``importlib._bootstrap._load_unlocked``), and another thread may look for it then.
_IMPORTS = """
import sys, threading
import smartmem_tvm
sys.setswitchinterval(1e-6)
start, errors, first = threading.Barrier(16), [], int(sys.argv[1])
names = ["frontend", "deploy.build", "deploy.export", "pipeline", "frontend.spec", "transform",
         "transform.lower.lower_sorts", "schedule.cpu.rows", "schedule", "frontend.onnx_file", "frontend.importer",
         "tune.kernel_search", "deploy.compiled"]
def work(number):
    start.wait()
    try:
        if number < len(names):
            __import__("smartmem_tvm." + names[number])
        else:
            __import__("smartmem_tvm").compile
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=((number + 5 * first) % 16,)) for number in range(16)]
[each.start() for each in threads], [each.join() for each in threads]
sys.exit(repr(errors) if errors else 0)
"""


def test_nine_threads_import_compile_save_load_and_run(tmp_path):
    """Each of three models with each of three jobs."""
    server = Server(tmp_path)
    server.run(9, seconds=0, at_least=1)
    assert not server.errors, f"{len(server.errors)}: {server.errors[0]}"
    assert sum(server.done.values()) == 9 and len(server.done) == 3


@pytest.mark.slow
def test_sixteen_threads_for_a_minute(tmp_path):
    server = Server(tmp_path)
    server.run(16, seconds=60, at_least=3)
    assert not server.errors, f"{len(server.errors)} of {server.done}: {server.errors[0]}"
    assert sum(server.done.values()) >= 48 and len(server.done) == 3  # the rest depends on how busy the machine is


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (1, 2))])
def test_sixteen_threads_import_the_package(first):
    """Threads import in both directions through each package, each run beginning at another module."""
    command = [sys.executable, "-c", _IMPORTS, str(first)]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_a_verb_may_call_another_and_two_threads_take_turns():
    inside, most = 0, 0

    @one_at_a_time
    def inner():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.01)
        inside -= 1

    outer = one_at_a_time(inner)
    threads = [threading.Thread(target=outer) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == 1


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not():
    holds, done = threading.Event(), threading.Event()

    @one_at_a_time
    def hold():
        holds.set()
        done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    if not (child := os.fork()):
        one_at_a_time(lambda: None)()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0  # and does not hang
    done.set()
    thread.join()
