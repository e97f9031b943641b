# SPDX-License-Identifier: Apache-2.0
"""The table of docs/opencl.md of what a recorded launch costs (opencl_recorded.py)."""

from __future__ import annotations

from rendering import content, host, table

RESULTS = "opencl_recorded.json"


def page() -> str:
    """A line for each way, microseconds of a launch by the number of its tensors, and where it was measured."""
    found = content(RESULTS)["recorded"]
    results = found["results"]
    numbers = sorted({each["tensors"] for each in results})
    times = {(each["way"], each["tensors"]): each for each in results}
    titles = ("a recorded launch is made", *(f"{number} tensors: host, in all" for number in numbers))
    lines = []
    for way in dict.fromkeys(each["way"] for each in results):
        rows = [times[way, number] for number in numbers]
        lines.append((way, *(f"{row['host_us']:.2f}, {row['in_all_us']:.2f}" for row in rows)))
    device = found["device"]
    where = f"Medians in microseconds. {device['platform']}, driver {device['driver']}; {host(found['machine'])}; "
    return f"{table(titles, lines)}\n\n{where}{found['date']}."
