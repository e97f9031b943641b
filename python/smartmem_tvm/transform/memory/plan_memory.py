# SPDX-License-Identifier: Apache-2.0
"""PlanMemory: what lies between the kernels of a function lies in one allocation."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import tvm
from tvm import ir, relax

from ...ir.allocations import Allocation, allocations, part
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

    The virtual machine makes each tensor of a shape and a place once. Which tensor is there when is written down in
    `HELD`, an attribute of the function.

    Offsets are those of `planner.arena_search`, whose checker proves that no tensor is written over while it is needed.
    FluidML, Algorithm 4. Kernels take no tensor that begins within its data; ``ensure_zero_offset`` moves the address
    on devices that count with addresses, and copies nothing. For OpenCL, which does not, ``vm.builtin.smartmem_part``
    of this package's runtime remembers where a tensor begins, and kernels are told.

    To be run after ``CallTIRRewrite``. Leaves to ``StaticPlanBlockMemory``: tensors of unknown shape or without
    elements, in textures, in a branch, those that others than kernels use, an arena larger than the device allocates at
    once, which a warning says, and all for devices of another machine that need more than addresses: its runtime may be
    TVM's. What a function returns is nobody's: the caller keeps it.

    Nothing is written where something else is read: a kernel's ``noalias`` promises that its arguments lie apart. Of
    Swin-T, ConvNeXt-T, RegNet and ViT-B/16 no peak would be lower if each sum at the end of a matmul or a convolution
    were written over its operand: the peaks are in the middle of blocks, where everything is still needed.

    Parameters
    ----------
    target : tvm.target.Target, optional
        What is compiled for, a CPU by default.
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
        return new


@dataclass(frozen=True)
class _Device:
    """How tensors may lie in an arena.

    Attributes
    ----------
    alignment : int
        Bytes that each offset is a multiple of.
    moved : callable
        The call that makes a tensor which begins at its data of one that begins within.
    largest : int, optional
        Bytes of one allocation, at most.
    """

    alignment: int
    moved: Callable[[relax.Var], ir.Call]
    largest: int | None = None


# TVM's allocator, and kernels in turn, hold to 64 bytes on CPUs, which is a line of cache, and CUDA's allocator to 256.
# OpenCL's kernels need no more than 128, the length of a double16: they get the same places as CUDA's.
_CPU, _CUDA = (_Device(alignment, _MEMORY.ensure_zero_offset) for alignment in (64, 256))
_OPENCL = _Device(256, part)


def _device(target: tvm.target.Target | None) -> _Device | None:
    """None if a device cannot have tensors within others."""
    if target is None or is_cpu(target):
        return _CPU
    if is_cuda(target):
        return _CUDA
    return replace(_OPENCL, largest=_largest_buffer()) if runs_ours(target) else None


def _largest_buffer() -> int | None:
    """What the driver of this machine's first OpenCL device allows; phones have a quarter of their memory."""
    ask = tvm.get_global_func("smartmem.opencl.devices", allow_missing=True)
    found = list(ask()) if ask is not None else []
    return int(found[0]["max_alloc_bytes"]) if found else None


def _described(tensor: Allocation, arena: int, offset: int) -> dict:
    """As `HELD` has it."""
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
    """Allocates arenas, each before its first tensor."""

    device: _Device
    offsets: dict[relax.Var, tuple[relax.Var, int]] = field(default_factory=dict)
    storages: dict[relax.Var, ir.Call] = field(default_factory=dict)  # not allocated yet
    made: dict[tuple, relax.Var] = field(default_factory=dict)  # what tells tensors apart -> the first one

    def add(self, place: tuple[int, str], held: list[relax.Var], arena: Arena) -> None:
        """An arena, and the variables of what is in it."""
        device, scope = place
        call = _normalized(_MEMORY.alloc_storage(relax.ShapeExpr([arena.bytes]), device, scope, "uint8"))
        storage = relax.Var(ARENA, call.ty)
        self.storages[storage] = call
        self.offsets.update({var: (storage, offset) for var, offset in zip(held, arena.offsets)})

    def block(self, block: relax.BindingBlock) -> Iterator[relax.Binding]:
        """The bindings of a block, with tensors in arenas."""
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
