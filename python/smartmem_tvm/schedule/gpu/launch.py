# SPDX-License-Identifier: Apache-2.0
"""A grid of thread groups, written by hand: what every rule for GPUs of our own is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.target import Target

from ...ir.compose import fold
from ...ir.kernel import Kernel
from ...tables.targets import Row
from ...target import is_gpu, named_device
from ..core.fold_policies import costly_once
from ..core.nest import Scope, fresh, index
from ..core.rule import NestRule
from ..core.split_tuples import split_tuples

_DATA_PARALLEL_THREAD = 1  # tirx.IterVar.iter_type: ThreadIndex


# Registers of a thread that hold no values: addresses, counters.
ADDRESSES = 16


@dataclass(frozen=True)
class GpuParams:
    """What the rules for rows and element-wise kernels may know of a GPU; numbers, so that a tuner can vary them.

    Attributes
    ----------
    most_threads : int
        Threads in a group, at most.
    shared_bytes : int
        On-chip memory of a group.
    busy_threads, busy_groups : int
        Threads and groups from which on the device has enough to do: below, a row is spread over more of them.
    vector : int
        Elements that a thread loads at once. 1 where loads of several elements are taken apart by the compiler: a
        vector in OpenCL need not be aligned, and NVIDIA's makes four strided loads of it.
    row_group : int
        Threads in a group of several short rows.
    values_each : int
        Elements of a row per thread that are aimed at where there are threads enough.
    registers : int
        Elements of rows that a thread may keep.
    elementwise_group : int
        Threads in a group of an element-wise kernel.
    launch : float
        Cycles of a large GPU that one more kernel costs: 3 us with CUDA graphs, 10 us where the host launches each
        kernel (measured through OpenCL on an H100).
    device : Row or None
        What is known of the device that the target names.
    """

    most_threads: int = 256
    shared_bytes: int = 16 * 1024
    busy_threads: int = 128 * 1024
    busy_groups: int = 120
    vector: int = 1
    row_group: int = 128
    values_each: int = 4
    registers: int = 128
    elementwise_group: int = 256
    launch: float = 17500.0
    device: Row | None = None

    @classmethod
    def of(cls, target: Target) -> GpuParams:
        """The parameters of a target whose keys include ``gpu``."""
        device = named_device(target)
        aligned = target.kind.name == "cuda" or any(key in target.keys for key in ("adreno", "mali"))
        return cls(
            most_threads=min(1024, int(target.attrs.get("max_num_threads") or cls.most_threads)),
            shared_bytes=int(target.attrs.get("max_shared_memory_per_block") or 48 * 1024),
            vector=4 if aligned else 1,
            registers=cls.registers if device is None else min(cls.registers, device.registers - ADDRESSES),
            launch=5000.0 if target.kind.name == "cuda" else cls.launch,
            device=device,
        )


class GpuRule(NestRule):
    """A rule for targets that run kernels on a grid of threads."""

    def runs_on(self, target: Target) -> bool:
        """Whether the target is a GPU."""
        return is_gpu(target)

    def params_of(self, target: Target) -> GpuParams:
        """What rules may know of a GPU."""
        return GpuParams.of(target)

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """The kernel with tuples split and element-wise stages folded into their readers."""
        return fold(split_tuples(kernel), costly_once)


def launch(scope: Scope, groups: int, threads: int, body: Callable) -> tirx.Stmt:
    """``body(group, thread)`` for each thread of each group."""
    return _bound(scope, "blockIdx.x", groups, lambda g: _bound(scope, "threadIdx.x", threads, lambda t: body(g, t)))


def _bound(scope: Scope, tag: str, extent: int, body: Callable) -> tirx.Stmt:
    var, span = fresh(tag.replace(".", "_")), ir.Range(index(0), index(extent))
    scope.analyzer.bind(var, span)
    thread = tirx.IterVar(span, fresh(tag), _DATA_PARALLEL_THREAD, tag)
    return tirx.For(var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body(var), thread_binding=thread)


def registers(count: int, dtype: str, name: str):
    """Values of one thread; every access must have a constant index once loops are unrolled."""
    return tirx.decl_buffer([index(count)], dtype, name, scope="local", layout=None)


def shared(count: int, dtype: str, name: str):
    """Values that the threads of a group share; TVM puts barriers between their writes and reads."""
    return tirx.decl_buffer([index(count)], dtype, name, scope="shared", layout=None)


def when(condition, body: tirx.Stmt) -> tirx.Stmt:
    """`body` under a condition; None is always true."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)
