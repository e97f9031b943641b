# SPDX-License-Identifier: Apache-2.0
"""End processes together: no worker outlives the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the system end this process when `parent`, which started it, ends; does nothing outside of Linux.

    A handler in the parent cannot do this: SIGKILL and the out-of-memory killer run no handlers. The system acts when
    the thread that started this process ends.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before
        os.kill(os.getpid(), signal.SIGKILL)


def end_group(leader: int) -> int:
    """Kill a child that leads a process group, and the whole group; return the child's exit status."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    return os.waitpid(leader, 0)[1]
