# SPDX-License-Identifier: Apache-2.0
"""Threads for the parallel loops of kernels: those of the library ``threads.so`` in the place of TVM's pool.

TVM gives each worker a task of its own and waits, in a loop that gives the processor away each time, until all of them
have done theirs. Where other processes run, a worker that the system has put to sleep holds up a loop of microseconds
for a slice of time, milliseconds. In ours whoever is awake takes what nobody has begun, loops of a few microseconds are
done by the calling thread alone, and who waits for long sleeps (``native/threads/pool.h``).

Modules of TVM that are opened after the library call it. ``SMARTMEM_THREADS=tvm`` leaves them TVM's pool; so does an
installation without the library. How many threads there are is TVM's setting in both cases (``TVM_NUM_THREADS``,
``runtime.config_threadpool``); workers run on the cores on which the calling thread may.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

import tvm  # noqa: F401  (loads globally what the library leaves open)

from ._version import version_problem

_log = logging.getLogger(__name__)


def library_path() -> Path:
    """Return where the library is, or would be had it been built."""
    return Path(__file__).resolve().parent / "lib" / "threads.so"


@cache
def use_own_threads() -> bool:
    """Have modules that are opened from now on share their loops among our threads; whether they do."""
    path = library_path()
    if os.environ.get("SMARTMEM_THREADS", "").lower() == "tvm" or version_problem() or not path.exists():
        return False
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        _log.warning("The library %s does not load (%s): kernels run on TVM's threads.", path, error)
        return False
    return True
