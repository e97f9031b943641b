# SPDX-License-Identifier: Apache-2.0
"""The OpenCL devices of this machine: list them, select them, build kernels for them, inspect them.

TVM's own interface (``tvm.opencl(0)``, the virtual machine, RPC) works without this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tvm

import _smartmem_opencl

from ..errors import UserError


@contextmanager
def every_launch() -> Iterator[None]:
    """Have the virtual machine make all launches of this thread meanwhile, for callers that observe each launch.

    Otherwise the virtual machine launches kernels whose tensors keep their addresses twice, and the recorded launches
    are repeated from then on.
    """
    switch = tvm.get_global_func("smartmem.opencl.replay", allow_missing=True)
    before = switch(False) if switch is not None else True
    try:
        yield
    finally:
        if switch is not None:
            switch(before)


@dataclass(frozen=True)
class DeviceInfo:
    """A device, as its driver describes it; sizes are in bytes, those of images in pixels.

    Attributes
    ----------
    index
        The number in ``tvm.opencl(index)``.
    name, vendor, platform, version, driver
        The driver's strings; `version` is that of OpenCL, `driver` that of the driver.
    type
        ``"gpu"``, ``"cpu"`` or ``"accelerator"``.
    image_pitch_pixels
        Row pitch of images that are views of a buffer: a multiple of so many pixels; 0 where there are no such images.
    half
        Whether kernels may compute with float16; storing it works everywhere.
    images, image_from_buffer
        Whether the device has textures, and whether they may share the memory of a buffer.
    replay
        How recorded launches are repeated: ``"command-buffer"``, ``"recordable-queue"``, or ``"launches"``, one call
        for each.
    """

    index: int
    name: str
    vendor: str
    platform: str
    version: str
    driver: str
    type: str
    compute_units: int
    max_work_group_size: int
    local_bytes: int
    global_bytes: int
    max_alloc_bytes: int
    image2d_width: int
    image2d_height: int
    image_array_depth: int
    image_pitch_pixels: int
    half: bool
    images: bool
    image_from_buffer: bool
    replay: str


def problem() -> str | None:
    """Return one sentence that says why nothing runs on OpenCL and what to do, or None if there is a device.

    The first call starts the driver.
    """
    _smartmem_opencl.load()
    if without_library := _smartmem_opencl.problem():
        return without_library
    ask = tvm.get_global_func("smartmem.opencl.problem", allow_missing=True)
    if ask is not None:
        return str(ask()) or None
    return None if tvm.opencl(0).exist else "TVM's own OpenCL finds no device: install the device's driver."


def library() -> str:
    """Return the OpenCL library in use: the system's loader, or the file of a driver.

    Raises
    ------
    UserError
        If this package's library is not loaded.
    """
    return str(_call("library"))


def devices() -> list[DeviceInfo]:
    """Return the devices that ``tvm.opencl(0)``, ``tvm.opencl(1)`` and so on stand for.

    Raises
    ------
    UserError
        If there is none; the message says what to install.
    """
    names = [field.name for field in fields(DeviceInfo)]
    found = _call("devices")
    # TVM's strings have a type of their own, which is not `str`.
    plain = [{name: str(each[name]) if isinstance(each[name], str) else each[name] for name in names} for each in found]
    return [DeviceInfo(**each) for each in plain]


def select(platform: str | int | None = None, device: str | int | None = None) -> list[DeviceInfo]:
    """Choose the devices to use, before the first use of any; overrides the environment variables.

    Parameters
    ----------
    platform, device
        Part of the name, in any case, or the number. None for all.

    Raises
    ------
    UserError
        If nothing matches, or a device is in use already.
    """
    _call("select", *("" if each is None else str(each) for each in (platform, device)))
    return devices()


def build(module: Any, device: tvm.runtime.Device | int = 0) -> int:
    """Build all kernels of a module now, in parallel, instead of each at its first launch.

    Parameters
    ----------
    module
        A `Compiled`, an executable, or a runtime module; the modules imported by it count too.
    device
        The device to build for.

    Returns
    -------
    int
        Number of kernels that were built from source, now or earlier; the others came from the cache.

    Raises
    ------
    UserError
        If there is no OpenCL, or no such device.
    RuntimeError
        If a kernel does not build; the message names it and shows the compiler's log.
    """
    module = getattr(module, "executable", module)
    module = getattr(module, "mod", module)
    return int(_function("build")(module, getattr(device, "index", device)))


def live_objects() -> dict[str, int]:
    """Return the number of driver objects of this process, by kind: ``"buffer"``, ``"image"``, ``"program"``..."""
    return {str(kind): int(count) for kind, count in _call("live_objects").items()}


def cache_folder() -> Path | None:
    """Return the folder of built kernels, None if they are not kept (``SMARTMEM_OPENCL_CACHE=0``)."""
    folder = str(_call("cache_folder"))
    return Path(folder) if folder else None


def _function(name: str):
    _smartmem_opencl.load()
    function = tvm.get_global_func(f"smartmem.opencl.{name}", allow_missing=True)
    if function is None:
        why = _smartmem_opencl.problem() or "this TVM has an OpenCL of its own, which this package leaves alone."
        raise UserError(why)
    return function


def _call(name: str, *args):
    try:
        return _function(name)(*args)
    except (RuntimeError, ValueError) as error:
        raise UserError(str(error)) from error
