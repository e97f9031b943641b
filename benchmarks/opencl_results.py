# SPDX-License-Identifier: Apache-2.0
"""The committed measurements on OpenCL devices: a file for each device, a section for each benchmark."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path


def record(path: Path, section: str, results: list) -> None:
    """Put results into a section of a device's file, and leave the others; what was measured on is beside them.

    Parameters
    ----------
    path : Path
        Made if it does not exist.
    section : str
        ``networks``, ``overhead`` or ``start``.
    """
    from smartmem_tvm.runtime import opencl
    from smartmem_tvm.tools.bench.machine_facts import machine

    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    device = opencl.devices()[0]
    content[section] = {
        "date": date.today().isoformat(),
        "device": {"name": device.name, "platform": device.platform, "driver": device.driver},
        "machine": machine(len(os.sched_getaffinity(0))),
        "results": results,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.rename(path)
