# SPDX-License-Identifier: Apache-2.0
"""Jobs for workers, well-behaved and not, in a module that is quick to import."""

import atexit
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

MEGABYTES = 100 * 10**6
_broken = []


def double(number):
    return 2 * number


def whoami(_):
    return os.getpid()


def cores(_):
    return os.sched_getaffinity(0)


def imported(name):
    return name in sys.modules


def refuse(text):
    raise ValueError(text)


def crash(_):
    ctypes.string_at(0)


def take_memory(times):
    return len(bytearray(times * MEGABYTES))


def loop(_):
    """Loop forever, without letting another Python thread run."""
    re.match("(a+)+$", "a" * 64 + "b")


def be_killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def loop_and_tell(path):
    Path(path).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


def compile_and_tell(path):
    """Behave like a job whose compiler takes long."""
    compiler = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(str(compiler.pid))
    compiler.wait()


def crash_or_nap(seconds):
    if seconds is None:
        crash(None)
    time.sleep(seconds)
    return seconds


def tell_at_exit(path):
    atexit.register(Path(path).write_text, "ended")


def crash_if_broken(breaks):
    """Break the worker, so that its next job crashes."""
    if _broken:
        crash(None)
    if breaks:
        _broken.append(True)
    return os.getpid()
