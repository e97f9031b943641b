# SPDX-License-Identifier: Apache-2.0
"""Threads for the parallel loops of kernels: the library ``threads.so`` replaces TVM's pool.

TVM assigns one task to each worker, and waits for all of them in a loop that yields the processor. If other processes
run, a worker that the system has descheduled delays a loop of microseconds by a time slice of milliseconds. In our
pool, any running thread takes tasks that no other thread has begun, the calling thread alone runs loops of a few
microseconds, and a thread that waits for long sleeps (``native/threads/pool.h``).

Modules of TVM that are opened after the library call it. With ``SMARTMEM_THREADS=tvm``, and in an installation without
the library, they use TVM's pool. TVM's settings give the number of threads in both cases (``TVM_NUM_THREADS``,
``runtime.config_threadpool``); workers run on the cores that the calling thread may use.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

import tvm  # noqa: F401  (loads the symbols that the library leaves undefined, globally)

from ._version import version_problem

_log = logging.getLogger(__name__)


def library_path() -> Path:
    """Return the path of the library, whether it was built or not."""
    return Path(__file__).resolve().parent / "lib" / "threads.so"


@cache
def use_own_threads() -> bool:
    """Let modules that are opened later run their loops on our threads; return whether they do."""
    path = library_path()
    if os.environ.get("SMARTMEM_THREADS", "").lower() == "tvm" or version_problem() or not path.exists():
        return False
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        _log.warning("The library %s does not load (%s): kernels run on TVM's threads.", path, error)
        return False
    return True
