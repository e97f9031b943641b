# SPDX-License-Identifier: Apache-2.0
"""The memory plan of an inference: its storages, and the tensors that they hold at each step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod

import tvm
from tvm import ir, relax, tirx

from ..ir.aliases import Aliases
from ..ir.public_functions import default_function
from ..ir.sizes import ARENA, HELD, STREAM, number_bytes
from .streamed import streamed_memory

PLANNED = ("lower", "plan_memory")
"""The phases after which a plan exists; a target has one of them."""
_MOVES = (".ensure_zero_offset", "vm.builtin.smartmem_part")  # the same tensor at another address (see `PlanMemory`)


def memory_plan(mod: tvm.IRModule, function: str | None = None) -> dict:
    """Return the storages of a function, and the tensors in them at each step.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after `PlanMemory` and TVM's static planning, lowered to the virtual machine or not.
    function : str, optional
        By default ``main``, or the only function.

    Returns
    -------
    dict
        ``steps``: the called functions, in the order of execution. ``storages``: ``bytes`` and ``scope`` of each, 0
        bytes if the size is known only at run time.
        ``tensors``: ``storage`` (its number), ``offset`` (its first byte there), ``kind`` (``activation``,
        ``workspace``, which only one kernel uses, or ``result`` of ``main``), ``shape``, ``dtype``, ``bytes``,
        ``first`` and ``last`` (the numbers of the first and of the last step with the tensor as an argument; a result
        stays until the end). With a memory budget, the plan is the one within the budget, and ``weight`` is also a
        kind. All are empty if there are several functions and none is ``main``.

    Raises
    ------
    UserError
        If there is no plan within the memory budget.
    """
    plan = _Plan()
    name = function or default_function(mod)
    if name is None:
        return {"steps": [], "storages": [], "tensors": []}
    main = mod[name]
    if stream := stream_of(mod, name):
        return streamed_memory(stream)
    for binding in (b for block in main.body.blocks for b in block.bindings):
        plan.read(binding.var, getattr(binding, "value", None))
    for tensor in plan.aliases.used(main.body.body):
        tensor |= {"last": max(len(plan.steps) - 1, 0), "kind": "result"}
    used = [each for each in plan.tensors if each["first"] is not None and each["storage"] not in plan.arenas]
    for each in json.loads(str((main.attrs or {}).get(HELD, "[]"))):
        number = each.pop("arena")
        used.append({"storage": plan.arenas[number], **each})
    for tensor in used:
        tensor.setdefault("kind", "workspace" if tensor["first"] == tensor["last"] else "activation")
    used.sort(key=lambda each: (each["first"], each["last"]))
    return {"steps": plan.steps, "storages": plan.storages, "tensors": used}


def stream_of(mod: tvm.IRModule, name: str) -> dict:
    """Return the facts about a function that a stream needs (`ir.sizes.STREAM`); empty without a memory budget."""
    attrs = mod[name].attrs or {}
    return json.loads(str(attrs[STREAM])) if STREAM in attrs else {}


@dataclass
class _Plan:
    steps: list[str] = field(default_factory=list)
    storages: list[dict] = field(default_factory=list)
    tensors: list[dict] = field(default_factory=list)
    numbers: dict = field(default_factory=dict)  # variable of a storage -> its number
    aliases: Aliases = field(default_factory=Aliases)
    arenas: list[int] = field(default_factory=list)  # numbers of the storages that several tensors share

    def read(self, var: relax.Var, value: relax.Expr) -> None:
        """Add one binding to the plan."""
        name = getattr(getattr(value, "op", None), "name", "") if isinstance(value, ir.Call) else ""
        if name.endswith(".alloc_storage"):
            self.numbers[var] = len(self.storages)
            if var.name.startswith(ARENA):
                self.arenas.append(len(self.storages))
            self.storages.append(_storage(value))
        elif name.endswith(".alloc_tensor"):
            self.tensors.append(self._tensor(var, value))
            self.aliases.bind(var, self.tensors[-1])
        elif isinstance(value, ir.Call) and _callee(value).endswith(_MOVES):
            self.aliases.follow(var, value.args[-1])
        elif isinstance(value, ir.Call) and ".kill_" not in name:
            self._step(var, value)
        elif not self.aliases.follow(var, value):
            self.aliases.bind(var, tuple(self.aliases.used(value)))

    def _tensor(self, var: relax.Var, value: ir.Call) -> dict:
        shape, dtype = list(var.ty.shape or ()), str(var.ty.dtype)
        dims = [int(dim) if isinstance(dim, tirx.IntImm) else str(dim) for dim in shape]
        place = {"storage": self.numbers.get(value.args[0]), "offset": _offset(value)}
        entry = {**place, "shape": dims, "dtype": dtype}
        count = _elements(var.ty.shape) * number_bytes(dtype)
        return {**entry, "bytes": count, "first": None, "last": None}

    def _step(self, var: relax.Var, value: ir.Call) -> None:
        tensors = self.aliases.used(value)
        if not tensors:
            return
        for each in tensors:
            each["first"] = len(self.steps) if each["first"] is None else each["first"]
            each["last"] = len(self.steps)
        self.aliases.bind(var, tuple(tensors))  # the result of a call may be an alias of one of its arguments
        self.steps.append(_callee(value))


def _storage(call: ir.Call) -> dict:
    scope = next((each.value for each in call.args if type(each).__name__ == "StringImm"), "global")
    return {"bytes": _elements(call.args[0]), "scope": scope}


def _offset(call: ir.Call) -> int:
    offset = call.args[1] if len(call.args) > 1 else None
    return int(offset) if isinstance(offset, tirx.IntImm) else 0


def _elements(shape: relax.Expr | None) -> int:
    """Return the number of elements of a shape; 0 if it is known only at run time."""
    known = isinstance(shape, relax.ShapeExpr) and all(isinstance(dim, tirx.IntImm) for dim in shape)
    return prod(int(dim) for dim in shape) if known else 0


def _callee(call: ir.Call) -> str:
    name = getattr(call.op, "name_hint", None) or getattr(call.op, "global_symbol", None) or call.op.name
    first = call.args[0] if call.args else None
    return first.global_symbol if isinstance(first, relax.ExternFunc) else name
