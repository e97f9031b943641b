# SPDX-License-Identifier: Apache-2.0
"""The speed of a target's device: measured once for each number of threads and kept, or read from the tables."""

from __future__ import annotations

import json
import logging

import tvm
from tvm.target import Target

from .. import json_data
from ..analysis.roofline import Speed
from ..deploy.binary_cache import cache_of
from ..errors import UserError, reason_of
from ..target import device_of, is_gpu, is_opencl, target_row
from ..tune.host import cpu_name
from . import opencl, speed_cpu, speed_gpu
from .device import describe

FOLDER_VARIABLE = "SMARTMEM_SPEED_CACHE"
"""Environment variable with the folder of kept speeds, ``0`` for none; by default in the user's cache folder."""
_logger = logging.getLogger(__name__)
_FORMAT = "4"  # version of the kept file and of the way of measuring


def speed_of(target: Target, again: bool = False) -> Speed | None:
    """Return the speed of a target's device, on as many threads as TVM runs kernels on.

    A device of this machine is measured, which takes a few seconds, and the result is kept for the next call. The speed
    of any other device comes from `tables.targets`.

    Parameters
    ----------
    again : bool
        Measure even if a kept result exists.

    Returns
    -------
    Speed or None
        None for a device that is neither here nor in a table, and for a CPU behind OpenCL: the driver does not report
        which parts of the CPU it uses.
    """
    try:
        device = device_of(target)
    except UserError:
        row = target_row(target)
        return Speed.of_row(row) if row is not None else None
    return None if _poses_as_gpu(target, device) else _kept(target, device, again)


def _poses_as_gpu(target: Target, device: tvm.runtime.Device) -> bool:
    known = is_opencl(target) and tvm.get_global_func("smartmem.opencl.devices", allow_missing=True) is not None
    return known and opencl.devices()[device.index].type == "cpu"


def _kept(target: Target, device: tvm.runtime.Device, again: bool) -> Speed | None:
    threads = None if is_gpu(target) else tvm.runtime.num_threads()
    name = _name(target, device)
    kept = cache_of(FOLDER_VARIABLE, "speed", "figures of this machine")
    key = (_FORMAT, name, str(threads), str(target), tvm.__version__)
    found = None if again else kept.load(*key)
    if found is not None:
        return Speed.from_dict(json_data.parse(found.decode()))
    try:
        speed = _measured(target, device, name, threads)
    except Exception as error:
        if threads is not None:
            raise
        _logger.warning("how fast %s is could not be measured (%s): kernels have no bounds.", name, reason_of(error))
        return None
    kept.store(json.dumps(speed.as_dict()).encode(), *key)
    return speed


def _name(target: Target, device: tvm.runtime.Device) -> str:
    if not is_gpu(target):
        return cpu_name()
    found = describe(device)
    return " ".join(filter(None, (found["name"], found["driver"] and f"driver {found['driver']}")))


def _measured(target: Target, device: tvm.runtime.Device, name: str, threads: int | None) -> Speed:
    if threads is None:
        return speed_gpu.measured(target, device, name)
    return speed_cpu.measured(target, threads, name)
