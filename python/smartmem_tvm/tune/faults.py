# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is that a candidate has no time: its own, or the machine's."""

from __future__ import annotations

from .genetic import Failure

KILLED = "was killed from outside, as happens when memory runs out"
NO_WORKER = "No worker process could be started"
NO_DEVICE = "No device could be used"
# What an operating system says when it runs out of something; a candidate alone does not do that.
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
    """What was to be found out about a candidate could not be, for a reason that says nothing of it."""


def failure_of(message: str) -> Failure:
    """The failure that an error message of a builder or runner tells of.

    A candidate that crashed, hung or could not be compiled is never tried again; one that the machine had no room for
    may be.
    """
    machine = next((sign for sign in _MACHINE if sign.lower() in message.lower()), None)
    return Failure(machine or message, candidate=machine is None)
