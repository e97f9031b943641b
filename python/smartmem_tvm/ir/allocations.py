# SPDX-License-Identifier: Apache-2.0
"""The tensors that a lowered Relax function allocates, and the launches that use them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import tvm
from tvm import ir, relax, tirx

from .aliases import Aliases
from .sizes import data_bytes

ALLOC = ir.Op.get("relax.builtin.alloc_tensor")
PART = "vm.builtin.smartmem_part"
"""The function of this package's OpenCL runtime that records the offset of a tensor in its storage."""


def part(tensor: relax.Var) -> ir.Call:
    """Return the call of `PART` for a tensor with an offset in its data."""
    return relax.Call(relax.ExternFunc(PART), [tensor], ty_args=[tensor.ty])


@dataclass(eq=False)
class Allocation:
    """A tensor that a call of `ALLOC` makes.

    Attributes
    ----------
    call : ir.Call
    steps : list of int
        Numbers of the launches that use the tensor, ascending.
    escapes : bool
        Whether something other than a launch uses the tensor, or the function returns it.
    """

    call: ir.Call
    steps: list[int] = field(default_factory=list)
    escapes: bool = False

    @property
    def place(self) -> tuple[int, str]:
        """The device's number and the memory scope."""
        return int(self.call.args[2]), self.call.args[3].value

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes; 0 if the size is known only at run time."""
        return data_bytes(self.call.ty)

    @property
    def fits(self) -> bool:
        """Whether a planner may choose the tensor's place in memory."""
        return bool(self.steps and self.bytes and not self.escapes)


def allocations(mod: tvm.IRModule, func: relax.Function, packed: Collection[str] = ()) -> dict[relax.Var, Allocation]:
    """Return every tensor that a function allocates outside of branches, by its variable.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after ``CallTIRRewrite``.
    func : relax.Function
        Function of `mod`.
    packed : collection of str
        Packed functions whose calls count as launches: they write into their arguments and keep none of them.
    """
    found: dict[relax.Var, Allocation] = {}
    aliases, launches = Aliases(), 0
    for binding in (b for block in func.body.blocks for b in block.bindings):
        var, value = binding.var, getattr(binding, "value", None)
        if allocates(value):
            found[var] = Allocation(value)
            aliases.bind(var, found[var])
        elif not aliases.follow(var, value):
            launch = is_launch(mod, value) or any(is_packed(value, name) for name in packed)
            for tensor in aliases.used(binding if value is None else value):
                tensor.steps.append(launches)
                tensor.escapes |= not launch
            launches += launch
    for tensor in aliases.used(func.body.body):
        tensor.escapes = True
    return found


def allocates(value: relax.Expr | None) -> bool:
    """Whether an expression allocates a tensor."""
    return isinstance(value, ir.Call) and value.op.same_as(ALLOC)


def is_launch(mod: tvm.IRModule, value: relax.Expr | None) -> bool:
    """Whether an expression launches a kernel, which writes into its arguments and keeps none of them."""
    called = value.op if isinstance(value, ir.Call) else None
    return isinstance(called, ir.GlobalVar) and isinstance(mod[called], tirx.PrimFunc)


def is_packed(value: relax.Expr | None, name: str) -> bool:
    """Whether an expression calls the packed function `name`."""
    called = value.op if isinstance(value, ir.Call) else None
    return isinstance(called, relax.ExternFunc) and called.global_symbol == name
