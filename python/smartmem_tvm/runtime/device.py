# SPDX-License-Identifier: Apache-2.0
"""Name the device and the driver that a measurement was made on."""

from __future__ import annotations

import subprocess

import tvm

from . import opencl


def describe(device: tvm.runtime.Device) -> dict[str, str]:
    """Return the name and the driver of a GPU.

    Parameters
    ----------
    device : tvm.runtime.Device
        A device of this machine.

    Returns
    -------
    dict
        ``name``; ``driver``, its version, empty if unknown; ``platform``: the interface and its version.
    """
    kind = str(device.type)
    if kind == "opencl" and tvm.get_global_func("smartmem.opencl.devices", allow_missing=True) is not None:
        found = opencl.devices()[device.index]
        return {"name": found.name, "driver": found.driver, "platform": f"{found.platform}, {found.version}"}
    if kind == "cuda":
        number = int(device.api_version or 0)
        capability = f"compute capability {device.compute_version}"
        platform = f"CUDA {number // 1000}.{number % 1000 // 10}, {capability}"
        return {"name": device.device_name, "driver": nvidia_driver(), "platform": platform}
    return {"name": device.device_name or kind, "driver": "", "platform": kind}


def nvidia_driver() -> str:
    """Return the version of NVIDIA's driver, empty if ``nvidia-smi`` is missing or fails."""
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.splitlines()[0].strip() if told.strip() else ""
