# SPDX-License-Identifier: Apache-2.0
"""Decide whether a job without an answer failed by its own fault or by the machine's."""

from __future__ import annotations

KILLED = "was killed from outside, as happens when memory runs out"
NO_WORKER = "No worker process could be started"
NO_DEVICE = "No device could be used"
# Errors of an operating system without free resources; a job alone does not cause them.
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
    """A result could not be obtained, for a reason that has nothing to do with the job."""


def machine_fault(message: str) -> str | None:
    """Return the resource that the machine lacked, by a worker's error message; None if the job is at fault."""
    return next((sign for sign in _MACHINE if sign.lower() in message.lower()), None)
