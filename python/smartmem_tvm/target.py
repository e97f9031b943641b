# SPDX-License-Identifier: Apache-2.0
"""Compilation targets by name, and the devices that run what is compiled for them."""

from __future__ import annotations

import os
import platform

import tvm
from tvm.target import codegen

import _smartmem_opencl

from .errors import UserError
from .tables.targets import TARGETS, Row, row_of

# Names of this machine's own devices, which are asked and not looked up.
_HERE = ("cpu", "opencl", "opencl-texture", "cuda")
# More than these no rule makes use of, and a CPU that poses as a GPU has no bounds.
_MOST_THREADS, _MOST_SHARED = 1024, 48 * 1024
# Names of other machines' devices.
_NAMED = tuple(name for name, row in TARGETS.items() if row.host)


def is_gpu(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` run on a grid of threads."""
    return "gpu" in target.keys


def has_textures(target: tvm.target.Target) -> bool:
    """Whether TVM may put tensors into texture memory for `target`."""
    return "texture" in target.keys


def named_device(target: tvm.target.Target) -> Row | None:
    """The row of the device that a target names by its model, None if it names none."""
    return TARGETS.get(str(target.attrs.get("model") or ""))


def host_target() -> tvm.target.Target:
    """The CPU of this machine: its instruction set and all its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "num-cores": int(cores or 1)})


def parse_target(text: str | None) -> tvm.target.Target:
    """The target a user names on the command line.

    Parameters
    ----------
    text : str or None
        None or ``"cpu"`` for this machine's CPU, ``"cuda"`` for this machine's first NVIDIA GPU (one of compute
        capability 8.0 where there is none), ``"opencl"`` for its first OpenCL device (one in general where there is
        none), ``"opencl-texture"`` for the same with tensors in textures, the name of a phone's GPU in
        `tables.targets` (``"adreno-740"``), otherwise
        anything TVM takes: a tag, a kind, or a JSON object. A GPU target without a host gets a CPU in general as its
        host, a phone's GPU the phone's CPU.

    Raises
    ------
    UserError
        If TVM does not know the target, or it is neither a CPU nor a GPU.
    """
    if text in (None, "cpu", "llvm"):
        return host_target()
    if text == "cuda":
        return _cuda_target()
    if text == "opencl":
        return _opencl_target()
    if text == "opencl-texture":
        return _with_textures(_opencl_target())
    if text in _NAMED:
        return _named_target(TARGETS[text])
    try:
        target = tvm.target.Target(text)
    except Exception as error:  # TVM raises several kinds here
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"target '{text}' is not known to TVM ({reason}): use {_names()} or a TVM target string."
        ) from error
    if is_gpu(target):
        return target if target.host is not None else target.with_host("llvm")
    if target.kind.name != "llvm":
        raise UserError(
            f"target '{text}' is a {target.kind.name} target, neither a CPU nor a GPU: use one of {_names()}."
        )
    return target


def _cuda_target() -> tvm.target.Target:
    """The first CUDA device of this machine, or the limits that every device since compute capability 8.0 keeps."""
    if tvm.cuda(0).exist:
        return tvm.target.Target.from_device(tvm.cuda(0)).with_host("llvm")
    limits = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80", **limits}, host="llvm")


def _opencl_target() -> tvm.target.Target:
    """The first OpenCL device of this machine, or what every device should have."""
    target = tvm.target.Target("opencl", host="llvm")
    if _problem("opencl") or not tvm.opencl(0).exist:
        return target
    device = tvm.opencl(0)
    facts = {key: value for key, value in target.export().items() if key != "host"}
    threads = min(int(device.max_threads_per_block), _MOST_THREADS)
    limits = {
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_shared_memory_per_block": min(int(device.max_shared_memory_per_block), _MOST_SHARED),
    }
    return tvm.target.Target({**facts, **limits}, host="llvm")


def _with_textures(target: tvm.target.Target) -> tvm.target.Target:
    """The same device with tensors in textures, as large as it takes them."""
    row = TARGETS["opencl"]
    sides, layers, pitch = (row.image_width, row.image_height), row.image_layers, row.image_pitch
    ask = tvm.get_global_func("smartmem.opencl.devices", allow_missing=True)
    if ask is not None and not _problem("opencl") and tvm.opencl(0).exist:
        device = ask()[0]
        sides, layers = (device["image2d_width"], device["image2d_height"]), device["image_array_depth"]
        pitch = device["image_pitch_pixels"] if device["image_from_buffer"] else 1
    facts = {key: value for key, value in target.export().items() if key != "host"}
    limits = {"texture_spatial_limit": int(min(sides)), "texture_depth_limit": int(layers), **_pitch(int(pitch))}
    return tvm.target.Target({**facts, **limits, "keys": [*facts["keys"], "texture"]}, host="llvm")


def _named_target(row: Row) -> tvm.target.Target:
    """A device as TVM describes it; ``model`` is the row's name, so that a rule finds the rest of it.

    TVM leaves out barriers within ``thread_warp_size`` threads, and how wide a wave is the phone's compiler decides for
    each kernel: it stays at TVM's 1.
    """
    textures = ["texture"] if row.textures else []
    limits = {
        "max_num_threads": row.work_group,
        "max_threads_per_block": row.work_group,
        "max_shared_memory_per_block": row.local_bytes,
        "texture_spatial_limit": min(row.image_width, row.image_height),
        "texture_depth_limit": row.image_layers,
        **_pitch(row.image_pitch),
    }
    keys = [row.family, row.kind, "gpu", *textures]
    facts = {"kind": row.kind, "device": row.family, "model": row.name, "keys": keys, **limits}
    return tvm.target.Target(facts, host={"kind": "llvm", "mtriple": row.host})


def _pitch(texels: int) -> dict[str, int]:
    """Where rows of an image begin, as TVM's attribute of this name has it: in bytes, of which float32 texels have 16.

    64 at least, TVM's default.
    """
    return {"image_base_address_alignment": max(64, 16 * texels)}


def _names() -> str:
    return ", ".join(f"'{name}'" for name in (*_HERE, *_NAMED))


def as_adreno(target: tvm.target.Target) -> tvm.target.Target:
    """The same device as TVM's schedules for Adreno take it: any OpenCL device with textures could run them."""
    facts = {key: value for key, value in target.export().items() if key != "host"}
    keys = list(dict.fromkeys(["adreno", *facts["keys"]]))
    return tvm.target.Target({**facts, "keys": keys}, host=target.host)


def target_row(target: tvm.target.Target) -> Row | None:
    """What `tables.targets` has on a target: on its model if it names one, otherwise on its kind; None if nothing."""
    return row_of(target.kind.name, str(target.attrs.get("model") or ""))


def device_of(target: tvm.target.Target, index: int = 0) -> tvm.runtime.Device:
    """The device that runs what is compiled for `target`.

    Parameters
    ----------
    index : int
        Of the devices of that kind.

    Raises
    ------
    UserError
        If this machine has none, or fewer.
    """
    kind = target.kind.name if is_gpu(target) else "cpu"
    if is_elsewhere(target):
        raise UserError(
            f"target '{target.attrs.get('model') or target.attrs.get('mtriple') or kind}' is the device of another "
            f"machine: run what is compiled for it there, tune and profile with --tracker and --key, or compile for "
            f"'{kind}' to run it here."
        )
    if kind == "cpu":
        return tvm.cpu(index)
    problem = _problem(kind)
    if problem:
        raise UserError(problem)
    device = tvm.device(kind, index)
    if not device.exist:
        raise UserError(f"There is no {kind} device {index} on this machine; see `smartmem doctor`.")
    return device


def is_elsewhere(target: tvm.target.Target) -> bool:
    """Whether the CPU of the target, or beside its device, is of another kind than this machine's."""
    host = target.host if is_gpu(target) else target
    triple = str(host.attrs.get("mtriple") or "") if host is not None else ""
    return bool(triple) and triple.partition("-")[0] != platform.machine()


def _problem(kind: str) -> str:
    """Why nothing runs on devices of a kind, empty if something may."""
    _smartmem_opencl.load()  # where this package is on the path and not installed, TVM has not done that
    if tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is None:
        ours = _smartmem_opencl.problem() if kind == "opencl" else None
        return ours or f"This TVM has no {kind} device runtime; compile for 'cpu', or see `smartmem doctor`."
    ask = tvm.get_global_func(f"smartmem.{kind}.problem", allow_missing=True)
    return str(ask()) if ask is not None else ""
