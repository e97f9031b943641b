# SPDX-License-Identifier: Apache-2.0
"""Compilation targets by name, and the devices that run their code."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace

import tvm
from tvm.target import codegen

import _smartmem_opencl

from .cpu_features import unnamed_features
from .errors import UserError
from .planner.texture_form import ImageLimits
from .tables.targets import TARGETS, Core, Row, row_of

# Names of this machine's own devices, whose figures come from the device and not from a table.
_HERE = ("cpu", "opencl", "opencl-texture", "cuda")
# Threads and bytes; no rule uses more, and an OpenCL driver for a CPU reports no bounds.
_MOST_THREADS, _MOST_SHARED = 1024, 48 * 1024
LEAST_ALIGNMENT = 64  # bytes; alignment of rows of an image: TVM's default, to which its runtime rounds on phones
GRAPH_LAUNCH = 5000.0
"""Cycles of a large GPU for one more kernel in a CUDA graph: 3 us, measured on an H100 (2026-11-22)."""
# Names of other machines' devices.
_NAMED = tuple(name for name, row in TARGETS.items() if row.host)


def is_gpu(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` run on a grid of threads."""
    return "gpu" in target.keys


def is_cpu(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` are loops that LLVM compiles."""
    return target.kind.name == "llvm"


def on_cpu() -> bool:
    """Whether the current target is a CPU; False without a current target."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and is_cpu(target)


def is_cuda(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` are CUDA's."""
    return target.kind.name == "cuda"


def is_opencl(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` are OpenCL's."""
    return target.kind.name == "opencl"


def device_kind(target: tvm.target.Target) -> str:
    """Return TVM's name of the kind of device that runs code for `target`: ``cpu``, ``opencl``, ``cuda``."""
    return target.kind.name if is_gpu(target) else "cpu"


def model_of(target: tvm.target.Target) -> str:
    """Return the name of a target's device, its attribute ``model``; empty if it names none."""
    return str(target.attrs.get("model") or "")


def has_textures(target: tvm.target.Target) -> bool:
    """Whether TVM may put tensors into texture memory for `target`."""
    return "texture" in target.keys


def has_half_storage(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` can store float16 in memory."""
    row = target_row(target)
    return row is not None and "float16" in row.texels


def has_half_arithmetic(target: tvm.target.Target) -> bool:
    """Whether kernels for `target` are known to support float16 arithmetic."""
    row = target_row(target)
    return row is not None and row.half


def cuda_architecture(target: tvm.target.Target) -> tuple[int, bool]:
    """Return (compute capability times ten, whether code may be for this architecture only), else (0, False)."""
    name = str(target.attrs.get("arch") or "").removeprefix("sm_")
    digits = name.rstrip("af")
    return (int(digits), name != digits) if digits.isdigit() else (0, False)


def has_matrix_instructions(target: tvm.target.Target) -> bool:
    """Whether tensor cores multiply float16, bfloat16 and tf32: compute capability 8.0 or more."""
    return is_cuda(target) and cuda_architecture(target)[0] >= 80


def launches_early(target: tvm.target.Target) -> bool:
    """Whether a kernel may be launched while the one before still runs: compute capability 9.0 or more."""
    return is_cuda(target) and cuda_architecture(target)[0] >= 90


def has_byte_dots(target: tvm.target.Target) -> bool:
    """Whether a GPU multiplies four bytes by four and adds them up in one instruction.

    In CUDA that is ``dp4a``, from compute capability 6.1 on; in OpenCL ``cl_khr_integer_dot_product``, which the row of
    a device names.
    """
    row = target_row(target)
    return (is_cuda(target) and cuda_architecture(target)[0] >= 61) or (row is not None and row.byte_dots)


def image_limits(target: tvm.target.Target) -> ImageLimits:
    """Return the largest image of a target with textures."""
    side = int(target.attrs.get("texture_spatial_limit") or ImageLimits.width)
    return ImageLimits(side, side, int(target.attrs.get("texture_depth_limit") or ImageLimits.layers))


def image_alignment(target: tvm.target.Target) -> int:
    """Return the alignment of rows of an image that is a view of a buffer, in bytes for float32 numbers."""
    return int(target.attrs.get("image_base_address_alignment") or LEAST_ALIGNMENT)


def host_triple(target: tvm.target.Target) -> str:
    """Return the LLVM triple of the CPU that runs or launches the code for `target`; empty if the target names none."""
    host = target if is_cpu(target) else target.host
    return str(host.attrs.get("mtriple") or "") if host is not None else ""


def named_device(target: tvm.target.Target) -> Row | None:
    """Return the row of the device that a target names by its model, None if it names none."""
    return TARGETS.get(model_of(target))


@dataclass(frozen=True)
class Limits:
    """The limits of kernels on a GPU target, and the figures of its device; the defaults are of a large GPU.

    Attributes
    ----------
    work_group : int
        Most threads of a thread block.
    shared_bytes : int
        Bytes of shared (local) memory of a thread block.
    registers : int
        Four-byte numbers that a thread may keep before the compiler spills.
    vector : int
        Contiguous elements that a load from global memory moves at once. 1 if the compiler splits vector loads: a
        vector in OpenCL need not be aligned, and NVIDIA's compiler makes four strided loads of it.
    shared_vector : int
        The same for shared memory. Compilers of Adreno and Mali keep aligned loads from global memory whole. For shared
        memory this is unknown, and if they split loads, the single loads conflict in a few banks.
    float_lanes : int
        Floats of the largest vector that the code generator computes with: four in CUDA.
    half_lanes : int
        Float16 lanes of a vector in arithmetic. Phones compute float16 in pairs, which their compilers find in a
        vector. 1 if vectors are split before compilation (CUDA).
    processors : int
        Units that run thread blocks independently of each other.
    launch_cycles : float
        Cost of one more kernel, in cycles of a large GPU: 3 us with CUDA graphs, 10 us if the host launches each kernel
        (measured through OpenCL on an H100).
    byte_dots : str
        Kind of the target (cuda, opencl) if it multiplies four bytes by four in one instruction; else empty.
    device : Row or None
        The figures of the device that the target names.
    """

    work_group: int = 256
    shared_bytes: int = _MOST_SHARED
    registers: int = 255
    vector: int = 1
    shared_vector: int = 1
    float_lanes: int = 16
    half_lanes: int = 1
    processors: int = 132
    launch_cycles: float = 17500.0
    byte_dots: str = ""
    device: Row | None = None

    @classmethod
    def of(cls, target: tvm.target.Target) -> Limits:
        """Return the limits of a GPU target; of TVM's two attributes for the size of a thread block, the smaller."""
        row = named_device(target)
        sizes = [int(target.attrs.get(name) or 0) for name in ("max_num_threads", "max_threads_per_block")]
        cuda, aligned = is_cuda(target), any(key in target.keys for key in ("adreno", "mali"))
        return cls(
            work_group=min([_MOST_THREADS, *filter(None, sizes)]) if any(sizes) else cls.work_group,
            shared_bytes=int(target.attrs.get("max_shared_memory_per_block") or cls.shared_bytes),
            registers=row.registers if row is not None else cls.registers,
            vector=4 if cuda or aligned else 1,
            shared_vector=4 if cuda else 1,
            float_lanes=4 if cuda else 16,
            half_lanes=8 if is_opencl(target) and has_half_arithmetic(target) else 1,
            processors=row.cores if row is not None else cls.processors,
            launch_cycles=GRAPH_LAUNCH if cuda else cls.launch_cycles,
            byte_dots=target.kind.name if has_byte_dots(target) else "",
            device=row,
        )

    @property
    def phone(self) -> bool:
        """Whether the target names a phone's GPU: what its compiler makes of a kernel is in docs/adreno.md."""
        return self.device is not None and self.device.phone

    @property
    def adreno_core(self) -> Core | None:
        """The core of the Adreno that the target names, else None."""
        return self.device.adreno_core if self.device is not None else None

    def vector_of(self, types: Iterable[str], computed: Iterable[str] = ("float16",)) -> int:
        """Return the contiguous elements of these types that a load moves at once: 16 bytes if all are float16.

        `computed` are the types of the arithmetic on them.
        """
        wide = 2 * self.vector
        halves = set(types) == {"float16"} and (set(computed) == {"float16"} or wide <= self.float_lanes)
        return wide if self.vector > 1 and halves else self.vector

    def at_most(self, work_group: int, shared_bytes: int) -> Limits:
        """Return the limits capped for a rule that uses no more."""
        return replace(
            self,
            work_group=min(self.work_group, work_group),
            shared_bytes=min(self.shared_bytes, shared_bytes),
        )


def host_target() -> tvm.target.Target:
    """Return the target of this machine's CPU, with its instruction set and all its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = codegen.llvm_get_system_cpu()
    unnamed = unnamed_features(cpu)
    more = {"mattr": unnamed} if unnamed else {}
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": int(cores or 1), **more})


def parse_target(text: str | None) -> tvm.target.Target:
    """Return the target that a user names on the command line.

    Parameters
    ----------
    text : str or None
        None or ``"cpu"`` for this machine's CPU, ``"cuda"`` for this machine's first NVIDIA GPU (without one, any of
        compute capability 8.0), ``"opencl"`` for its first OpenCL device (without one, a generic device),
        ``"opencl-texture"`` for the same with tensors in textures, the name of a phone's GPU in `tables.targets`
        (``"adreno-740"``), otherwise any target of TVM: a tag, a kind, or a JSON object. A GPU target without a host
        gets a generic CPU as its host, a phone's GPU the phone's CPU.

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
    if not is_cpu(target):
        raise UserError(
            f"target '{text}' is a {target.kind.name} target, neither a CPU nor a GPU: use one of {_names()}."
        )
    return target


def _cuda_target() -> tvm.target.Target:
    """Return the first CUDA device of this machine, or the limits that all devices since capability 8.0 meet."""
    if tvm.cuda(0).exist:
        return _for_itself(tvm.target.Target.from_device(tvm.cuda(0))).with_host("llvm")
    limits = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80", **limits}, host="llvm")


def _for_itself(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with the instructions of its own architecture only, such as those of warpgroups."""
    if str(target.attrs.get("arch")) != "sm_90":
        return target
    return tvm.target.Target({**target.export(), "arch": "sm_90a"})


def _opencl_target() -> tvm.target.Target:
    """Return the first OpenCL device of this machine, or a generic device."""
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
    """Return the same device with tensors in textures, of at most the device's largest size."""
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
    """Return TVM's target for a device; ``model`` is the name of the row, by which rules find its other figures.

    TVM omits barriers within ``thread_warp_size`` threads, but a phone's compiler chooses the width of a wave for each
    kernel. So the size stays at TVM's default of 1.
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
    """Return the attribute that `image_alignment` reads, for a pitch in texels: float32 texels have 16 bytes."""
    return {"image_base_address_alignment": max(LEAST_ALIGNMENT, 16 * texels)}


def _names() -> str:
    return ", ".join(f"'{name}'" for name in (*_HERE, *_NAMED))


def as_adreno(target: tvm.target.Target) -> tvm.target.Target:
    """Return the same device as a target for TVM's Adreno schedules, which any OpenCL device with textures can run."""
    facts = {key: value for key, value in target.export().items() if key != "host"}
    keys = list(dict.fromkeys(["adreno", *facts["keys"]]))
    return tvm.target.Target({**facts, "keys": keys}, host=target.host)


def target_row(target: tvm.target.Target) -> Row | None:
    """Return the row of a target in `tables.targets`: by its model if it names one, else by its kind, else None."""
    return row_of(target.kind.name, model_of(target))


def device_of(target: tvm.target.Target, index: int = 0) -> tvm.runtime.Device:
    """Return the device that runs code for `target`.

    Parameters
    ----------
    index : int
        Number of the device among those of its kind.

    Raises
    ------
    UserError
        If this machine has no such device.
    """
    kind = device_kind(target)
    if is_elsewhere(target):
        raise UserError(
            f"target '{model_of(target) or target.attrs.get('mtriple') or kind}' is the device of another "
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
    """Whether the target's CPU, or the CPU beside its device, is of another kind than this machine's."""
    triple = host_triple(target)
    return bool(triple) and triple.partition("-")[0] != platform.machine()


def runs_ours(target: tvm.target.Target) -> bool:
    """Whether OpenCL kernels for `target` run with this package's runtime; a phone may have TVM's."""
    return is_opencl(target) and not is_elsewhere(target) and not model_of(target)


def _problem(kind: str) -> str:
    """Return the reason why this machine cannot use devices of a kind, empty if it can."""
    _smartmem_opencl.load()  # TVM loads it only if this package is installed, not if it is merely on the path
    if tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is None:
        ours = _smartmem_opencl.problem() if kind == "opencl" else None
        return ours or f"This TVM has no {kind} device runtime; compile for 'cpu', or see `smartmem doctor`."
    ask = tvm.get_global_func(f"smartmem.{kind}.problem", allow_missing=True)
    return str(ask()) if ask is not None else ""
