# SPDX-License-Identifier: Apache-2.0
"""Processes that end together: no worker is left behind when the process that started it ends, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the system end this process when `parent`, which started it, ends; on Linux, nothing elsewhere.

    No handler in the parent does that: SIGKILL and the out-of-memory killer leave no time for one. It counts from the
    end of the thread that started this process.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        os.kill(os.getpid(), signal.SIGKILL)


def end_group(leader: int) -> int:
    """Kill a child, which leads a process group, and everything in the group; return the child's exit status."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    return os.waitpid(leader, 0)[1]
