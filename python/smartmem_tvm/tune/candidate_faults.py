# SPDX-License-Identifier: Apache-2.0
"""Decide whether a candidate without a time failed by its own fault or by the machine's."""

from __future__ import annotations

from ..executor.faults import machine_fault
from .genetic import Failure


def failure_of(message: str) -> Failure:
    """Return the failure for an error message of a builder or runner.

    A candidate that crashed, hung or could not be compiled is never tried again; one for which the machine had no room
    may be.
    """
    machine = machine_fault(message)
    return Failure(machine or message, candidate=machine is None)
