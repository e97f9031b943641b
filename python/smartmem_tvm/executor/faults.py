# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is that a job has no answer: its own, or the machine's."""

from __future__ import annotations

KILLED = "was killed from outside, as happens when memory runs out"
NO_WORKER = "No worker process could be started"
NO_DEVICE = "No device could be used"
# What an operating system says when it runs out of something; a job alone does not do that.
_MACHINE = (
    KILLED,
    NO_WORKER,
    NO_DEVICE,
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Cannot allocate memory",
    "Too many open files",
    "Resource temporarily unavailable",
    "Read-only file system",
)


class MachineFailed(Exception):
    """What was to be found out could not be, for a reason that says nothing of it."""


def machine_fault(message: str) -> str | None:
    """What the machine lacked by an error message of a worker; None if the job itself is at fault."""
    return next((sign for sign in _MACHINE if sign.lower() in message.lower()), None)
