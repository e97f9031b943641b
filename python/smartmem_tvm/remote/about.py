# SPDX-License-Identifier: Apache-2.0
"""What a server tells of itself and its devices; functions of its sessions, which answer in JSON.

TVM's sessions carry numbers, texts and tensors, and no version of the other side's TVM.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .. import json_data
from .._version import __version__, installed_version
from ..tune.host import cpu_name

ABOUT = "smartmem.rpc.about"
DEVICES = "smartmem.rpc.devices"
# What we call it, and TVM.
_ATTRIBUTES = {
    "name": "device_name",
    "driver": "driver_version",
    "version": "compute_version",
    "compute_units": "multi_processor_count",
    "max_work_group_size": "max_threads_per_block",
    "local_bytes": "max_shared_memory_per_block",
    "global_bytes": "total_global_memory",
}
_ABOUT = {"tvm": (str, None), "smartmem?": str, "machine?": str, "system?": str, "cores?": json_data.is_size}
_DEVICE = {"kind": str, "index": json_data.is_size, "name?": str, "driver?": str, "version?": str, "replay?": str}
_DEVICE |= {f"{name}?": json_data.is_size for name in _ATTRIBUTES if name not in ("name", "driver", "version")}
MOST_DEVICES = 64  # of one kind, or told by one server
# Kinds of devices that this package compiles for, and some that a server may have besides.
KINDS = ("cpu", "opencl", "cuda", "vulkan", "metal", "rocm")


def tvm_version() -> str:
    """The version of this process's TVM."""
    if found := installed_version("apache-tvm"):
        return found
    import tvm

    return str(tvm.__version__)


def about_json() -> str:
    """``tvm``, ``smartmem``: versions; ``machine``, ``system``: its CPU and operating system; ``cores``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = {"machine": platform.machine(), "system": platform.system(), "cores": cores}
    return json.dumps({"tvm": tvm_version(), "smartmem": __version__, **machine})


def parse_about(text: str) -> dict[str, Any]:
    """What `about_json` wrote on another machine, as far as it is that."""
    with contextlib.suppress(ValueError):
        if json_data.fits(told := json_data.parse(text), _ABOUT):
            return told
    return {"tvm": None}


def parse_devices(text: str) -> list[dict[str, Any]]:
    """What `devices_json` wrote on another machine, as far as it is that."""
    with contextlib.suppress(ValueError):
        if isinstance(told := json_data.parse(text), list):
            return [each for each in told[:MOST_DEVICES] if json_data.fits(each, _DEVICE)]
    return []


def devices_json() -> str:
    """What `local_devices` finds."""
    return json.dumps(local_devices())


def local_devices() -> list[dict[str, Any]]:
    """The devices of this machine: ``kind``, ``index`` and what drivers tell, sizes in bytes and pixels."""
    import tvm

    from ..runtime import device as local
    from ..runtime import opencl

    found = []
    for kind in KINDS:
        if tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is None:
            continue
        if kind == "opencl" and tvm.get_global_func("smartmem.opencl.devices", allow_missing=True) is not None:
            if opencl.problem() is None:
                found += [{"kind": kind, **asdict(each)} for each in opencl.devices()]
            continue
        told = tvm_devices(kind, lambda index, kind=kind: tvm.device(kind, index))
        found += [{**each, **local.describe(tvm.device(kind, each["index"]))} for each in told]
    return [{**each, "name": cpu_name()} if each["kind"] == "cpu" else each for each in found]


def tvm_devices(kind: str, device: Callable[[int], Any]) -> list[dict[str, Any]]:
    """What TVM itself knows of the devices of a kind, here or behind a session, as far as drivers tell it."""
    found, indices = [], range(1) if kind == "cpu" else range(MOST_DEVICES)  # a CPU exists at every index
    for index in indices:
        if not (each := device(index)).exist:
            break
        told = {name: getattr(each, attribute) for name, attribute in _ATTRIBUTES.items()}
        found.append({"kind": kind, "index": index, **{name: value for name, value in told.items() if value}})
    return found
