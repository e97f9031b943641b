# SPDX-License-Identifier: Apache-2.0
"""Compilation targets by name, and the devices that run what is compiled for them."""

from __future__ import annotations

import os

import tvm
from tvm.target import codegen

import _smartmem_opencl

from ..errors import UserError
from ..schedule.gpu_default import is_gpu


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
        capability 8.0 where there is none), otherwise anything TVM takes: a tag, a kind, or a JSON object. A GPU target
        without a host gets a CPU in general as its host.

    Raises
    ------
    UserError
        If TVM does not know the target, or it is neither a CPU nor a GPU.
    """
    if text in (None, "cpu", "llvm"):
        return host_target()
    if text == "cuda":
        return _cuda_target()
    try:
        target = tvm.target.Target(text)
    except Exception as error:  # TVM raises several kinds here
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"target '{text}' is not known to TVM ({reason}): use 'cpu', 'opencl', 'cuda' or a TVM target string."
        ) from error
    if is_gpu(target):
        return target if target.host is not None else target.with_host("llvm")
    if target.kind.name != "llvm":
        raise UserError(
            f"target '{text}' is a {target.kind.name} target, neither a CPU nor a GPU: use 'cpu', 'opencl' or 'cuda'."
        )
    return target


def _cuda_target() -> tvm.target.Target:
    """The first CUDA device of this machine, or the limits that every device since compute capability 8.0 keeps."""
    if tvm.cuda(0).exist:
        return tvm.target.Target.from_device(tvm.cuda(0)).with_host("llvm")
    limits = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80", **limits}, host="llvm")


def has_textures(target: tvm.target.Target) -> bool:
    """Whether TVM may put tensors into texture memory for `target`."""
    return "texture" in target.keys


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
    if not is_gpu(target):
        return tvm.cpu(index)
    kind = target.kind.name
    problem = _problem(kind)
    if problem:
        raise UserError(problem)
    device = tvm.device(kind, index)
    if not device.exist:
        raise UserError(f"There is no {kind} device {index} on this machine; see `smartmem doctor`.")
    return device


def _problem(kind: str) -> str:
    """Why nothing runs on devices of a kind, empty if something may."""
    if tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is None:
        ours = _smartmem_opencl.problem() if kind == "opencl" else None
        return ours or f"This TVM has no {kind} device runtime; compile for 'cpu', or see `smartmem doctor`."
    ask = tvm.get_global_func(f"smartmem.{kind}.problem", allow_missing=True)
    return str(ask()) if ask is not None else ""
