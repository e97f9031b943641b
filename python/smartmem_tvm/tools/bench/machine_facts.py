# SPDX-License-Identifier: Apache-2.0
"""Describe the machine of a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from ..._version import __version__, installed_version
from ...tune.host import cpu_name

_PACKAGES = ("apache-tvm", "onnxruntime", "numpy")


def machine(cores: int, devices: Mapping[str, Mapping] | None = None) -> dict:
    """Return CPU model, usable cores, memory in GB (10^9 bytes), operating system, versions.

    Parameters
    ----------
    cores : int
        Cores that this process may use.
    devices : mapping, optional
        Target -> the result of `runtime.device.describe`, for devices other than the CPU.
    """
    return {
        "cpu": cpu_name(),
        "cores": cores,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "os": _system(),
        "python": platform.python_version(),
        "smartmem-tvm": __version__,
        **{name: installed_version(name) for name in _PACKAGES},
        **({"devices": {target: dict(facts) for target, facts in devices.items()}} if devices else {}),
    }


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, {platform.machine()}"
