# SPDX-License-Identifier: Apache-2.0
"""Facts about a server and its devices, returned in JSON by functions of its sessions.

TVM's sessions pass numbers, texts and tensors, but not the version of the other side's TVM.
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
# Our name -> TVM's name.
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
MOST_DEVICES = 64  # of one kind, or of one server
# Kinds of devices that this package compiles for, and others that a server may have.
KINDS = ("cpu", "opencl", "cuda", "vulkan", "metal", "rocm")


def tvm_version() -> str:
    """Return the version of this process's TVM."""
    if found := installed_version("apache-tvm"):
        return found
    import tvm

    return str(tvm.__version__)


def about_json() -> str:
    """Return ``tvm``, ``smartmem``: versions; ``machine``, ``system``: CPU and operating system; ``cores``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = {"machine": platform.machine(), "system": platform.system(), "cores": cores}
    return json.dumps({"tvm": tvm_version(), "smartmem": __version__, **machine})


def parse_about(text: str) -> dict[str, Any]:
    """Parse the result of `about_json` from another machine; unknown facts if it is malformed."""
    with contextlib.suppress(ValueError):
        if json_data.fits(told := json_data.parse(text), _ABOUT):
            return told
    return {"tvm": None}


def parse_devices(text: str) -> list[dict[str, Any]]:
    """Parse the result of `devices_json` from another machine and drop malformed entries."""
    with contextlib.suppress(ValueError):
        if isinstance(told := json_data.parse(text), list):
            return [each for each in told[:MOST_DEVICES] if json_data.fits(each, _DEVICE)]
    return []


def devices_json() -> str:
    """Return `local_devices` as JSON."""
    return json.dumps(local_devices())


def local_devices() -> list[dict[str, Any]]:
    """Return the devices of this machine: ``kind``, ``index`` and facts from drivers, sizes in bytes and pixels."""
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
    """Return TVM's own facts about the devices of a kind, here or of a session, where drivers provide them."""
    found, indices = [], range(1) if kind == "cpu" else range(MOST_DEVICES)  # a CPU exists at every index
    for index in indices:
        if not (each := device(index)).exist:
            break
        told = {name: getattr(each, attribute) for name, attribute in _ATTRIBUTES.items()}
        found.append({"kind": kind, "index": index, **{name: value for name, value in told.items() if value}})
    return found
