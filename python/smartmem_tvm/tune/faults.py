# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is that a candidate has no time: its own, or the machine's."""

from __future__ import annotations

from ..executor.faults import machine_fault
from .genetic import Failure


def failure_of(message: str) -> Failure:
    """The failure that an error message of a builder or runner tells of.

    A candidate that crashed, hung or could not be compiled is never tried again; one that the machine had no room for
    may be.
    """
    machine = machine_fault(message)
    return Failure(machine or message, candidate=machine is None)
