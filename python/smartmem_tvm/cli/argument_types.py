# SPDX-License-Identifier: Apache-2.0
"""Types of numbers on the command line for argparse; errors quote the text."""

from __future__ import annotations

import argparse

from ..errors import UserError
from ..memory_size import memory_bytes

_LONGEST = 1e6  # seconds
_SEEDS = 2**31  # bound of the seeds of TVM's generators


def positive(text: str) -> int:
    """Return a count of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def seconds(text: str) -> float:
    """Return a time limit in seconds; clocks and sockets support no infinite one."""
    value = float(text)
    if not 0 < value <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between 0 and {_LONGEST:g}")
    return value


def memory(text: str) -> int:
    """Return the bytes of a size like ``100MB`` or ``64MiB``."""
    try:
        return memory_bytes(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def seed(text: str) -> int:
    """Return a seed of random numbers."""
    value = int(text)
    if not 0 <= value < _SEEDS:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {_SEEDS - 1}")
    return value


def tolerance(text: str) -> float:
    """Return a finite tolerance."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value
