# SPDX-License-Identifier: Apache-2.0
"""PlanMemory: all tensors between the kernels of a function share one allocation."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import tvm
from tvm import ir, relax

from ...ir.allocations import Allocation, allocations, part
from ...ir.several_sizes import with_common_arenas
from ...ir.sizes import ARENA, HELD
from ...planner.arena import Arena, Block
from ...planner.arena_search import plan_arena
from ...target import is_cpu, is_cuda, runs_ours

_MEMORY = relax.op.memory
_log = logging.getLogger(__name__)


@tvm.transform.module_pass(opt_level=0, name="smartmem.PlanMemory")
class PlanMemory:
    """Give each tensor between kernels, and each workspace, an offset in one storage per device and memory scope.

    Before (``a`` is no longer read when ``c`` is written)::

        a = R.builtin.alloc_tensor((100,), "float32"); first(x, a)
        b = R.builtin.alloc_tensor((200,), "float32"); second(a, b)
        c = R.builtin.alloc_tensor((100,), "float32"); third(b, c); fourth(c, y)

    After::

        arena = R.memory.alloc_storage(1280)
        part = R.memory.alloc_tensor(arena, 832, (100,), "float32")
        a = R.memory.ensure_zero_offset(part); first(x, a)
        b = R.memory.alloc_tensor(arena, 0, (200,), "float32"); second(a, b)
        c = a; third(b, c); fourth(c, y)

    The virtual machine creates each tensor of one shape and place once. The function's attribute `HELD` lists the
    lifetimes of the tensors.

    `planner.arena_search` chooses the offsets (FluidML, Algorithm 4); its checker proves that no tensor is overwritten
    while it is needed. Kernels accept no tensor with a byte offset: ``ensure_zero_offset`` moves the data pointer and
    copies nothing, on devices with pointer arithmetic. OpenCL has none; there ``vm.builtin.smartmem_part`` of this
    package's runtime records the tensor's offset and passes it to the kernels.

    Run the pass after ``CallTIRRewrite``. It leaves to ``StaticPlanBlockMemory``: tensors of unknown shape, without
    elements, in textures, in a branch, or used by other calls than kernels; arenas larger than the device allocates at
    once (with a warning); and all tensors for devices of another machine without pointer arithmetic, whose runtime may
    be TVM's. A function's results are in no arena: the caller keeps them.

    No kernel writes a result over an operand: its ``noalias`` promises that its arguments do not overlap. In Swin-T,
    ConvNeXt-T, RegNet and ViT-B/16 no peak would be lower if each sum at the end of a matmul or a convolution were
    written over its operand: the peaks are in the middle of blocks, where all tensors are still needed.

    Parameters
    ----------
    target : tvm.target.Target, optional
        The target, a CPU by default.
    """

    def __init__(self, target: tvm.target.Target | None = None):
        self.device = _device(target)

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        if self.device is None:
            return mod
        functions = [(gvar, func) for gvar, func in mod.functions_items() if isinstance(func, relax.Function)]
        new = mod.clone()
        for gvar, func in functions:
            new.update_func(gvar, _planned(mod, func, self.device))
        return with_common_arenas(new)


@dataclass(frozen=True)
class _Device:
    """A device's rules for tensors in an arena.

    Attributes
    ----------
    alignment : int
        Each offset is a multiple of so many bytes.
    moved : callable
        Tensor with a byte offset -> call that makes a tensor without one, of the same memory.
    largest : int, optional
        Largest allocation in bytes.
    """

    alignment: int
    moved: Callable[[relax.Var], ir.Call]
    largest: int | None = None


# TVM's allocator aligns to 64 bytes on CPUs, one cache line, and kernels rely on it; CUDA's allocator aligns to 256.
# OpenCL's kernels need 128 bytes at most, the size of a double16: they get CUDA's alignment.
_CPU, _CUDA = (_Device(alignment, _MEMORY.ensure_zero_offset) for alignment in (64, 256))
_OPENCL = _Device(256, part)


def _device(target: tvm.target.Target | None) -> _Device | None:
    """Return the target's rules; None if it cannot have tensors at an offset in an allocation."""
    if target is None or is_cpu(target):
        return _CPU
    if is_cuda(target):
        return _CUDA
    return replace(_OPENCL, largest=_largest_buffer()) if runs_ours(target) else None


def _largest_buffer() -> int | None:
    """Return the bytes that this machine's first OpenCL device allocates at once; on phones a quarter of the memory."""
    ask = tvm.get_global_func("smartmem.opencl.devices", allow_missing=True)
    found = list(ask()) if ask is not None else []
    return int(found[0]["max_alloc_bytes"]) if found else None


def _described(tensor: Allocation, arena: int, offset: int) -> dict:
    """Return a tensor's entry in `HELD`."""
    facts = {"shape": [int(dim) for dim in tensor.call.args[0]], "dtype": str(tensor.call.ty.dtype)}
    lifetime = {"bytes": tensor.bytes, "first": min(tensor.steps), "last": max(tensor.steps)}
    return {"arena": arena, "offset": offset, **facts, **lifetime}


def _planned(mod: tvm.IRModule, func: relax.Function, device: _Device) -> relax.Function:
    arenas: dict[tuple[int, str], list[relax.Var]] = {}
    found = {var: each for var, each in allocations(mod, func).items() if each.fits and each.place[1] == "global"}
    for var, tensor in found.items():
        arenas.setdefault(tensor.place, []).append(var)
    if not arenas:
        return func
    rewriter, written = _Rewriter(device), []
    for number, (place, names) in enumerate(arenas.items()):
        held = [found[var] for var in names]
        arena = plan_arena([Block(each.bytes, min(each.steps), max(each.steps)) for each in held], device.alignment)
        if device.largest is not None and arena.bytes > device.largest:
            _log.warning(
                "The %d tensors between kernels need an arena of %.0f MB, and this device allocates at most %.0f MB at "
                "once: they are left to TVM's planner, which takes more memory in smaller pieces.",
                *(len(names), arena.bytes / 1e6, device.largest / 1e6),
            )
            continue
        rewriter.add(place, names, arena)
        written += [_described(each, number, offset) for each, offset in zip(held, arena.offsets)]
    if not written:
        return func
    blocks = [relax.BindingBlock(list(rewriter.block(block))) for block in func.body.blocks]
    body = relax.SeqExpr(blocks, func.body.body)
    planned = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    return planned.with_attr(HELD, json.dumps(written))


@dataclass
class _Rewriter:
    """Rewriter that allocates arenas, each before its first tensor."""

    device: _Device
    offsets: dict[relax.Var, tuple[relax.Var, int]] = field(default_factory=dict)
    storages: dict[relax.Var, ir.Call] = field(default_factory=dict)  # not allocated yet
    made: dict[tuple, relax.Var] = field(default_factory=dict)  # place, shape and type -> the first tensor with them

    def add(self, place: tuple[int, str], held: list[relax.Var], arena: Arena) -> None:
        """Add an arena and the variables of its tensors."""
        device, scope = place
        call = _normalized(_MEMORY.alloc_storage(relax.ShapeExpr([arena.bytes]), device, scope, "uint8"))
        storage = relax.Var(ARENA, call.ty)
        self.storages[storage] = call
        self.offsets.update({var: (storage, offset) for var, offset in zip(held, arena.offsets)})

    def block(self, block: relax.BindingBlock) -> Iterator[relax.Binding]:
        """Yield the bindings of a block, with tensors in arenas."""
        for binding in block.bindings:
            if binding.var not in self.offsets:
                yield binding
                continue
            storage, offset = self.offsets[binding.var]
            if storage in self.storages:
                yield relax.VarBinding(storage, self.storages.pop(storage))
            yield from self._at(binding, storage, offset)

    def _at(self, binding: relax.VarBinding, storage: relax.Var, offset: int) -> Iterator[relax.VarBinding]:
        shape, dtype, device, _ = binding.value.args
        key = storage, offset, tuple(map(int, shape)), str(binding.var.ty)
        if key in self.made:
            yield relax.VarBinding(binding.var, self.made[key])
            return
        self.made[key] = binding.var
        tensor = _normalized(_MEMORY.alloc_tensor(storage, offset, shape, dtype, device))
        if offset:
            var = relax.Var(f"{binding.var.name}_part", tensor.ty)
            yield relax.VarBinding(var, tensor)
            tensor = _normalized(self.device.moved(var))
        yield relax.VarBinding(binding.var, tensor)


def _normalized(call: ir.Call) -> ir.Call:
    return relax.BlockBuilder().normalize(call)
