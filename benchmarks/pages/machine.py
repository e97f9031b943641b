# SPDX-License-Identifier: Apache-2.0
"""The table of docs/cpu.md, of a processor's figures beside those that models of time count with (machine.py)."""

from __future__ import annotations

from rendering import content

RESULTS = "machine_xeon.json"


def page() -> str:
    """A line for each figure, and where it was measured."""
    from machine import Figure, table  # here, as it imports TVM

    kept = content(RESULTS)
    figures = table(Figure(**each) for each in kept["figures"])
    return f"{figures}\n\nOne thread of an {kept['machine']['cpu']}, beside other processes; {kept['date']}."
