# SPDX-License-Identifier: Apache-2.0
"""OwnStorages: planned memory is allocated on every path to a tensor in it, whichever branch is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
from tvm import ir, relax

from ..ir.walk import collect

_STORAGE, _TENSOR = (ir.Op.get(f"relax.memory.alloc_{what}") for what in ("storage", "tensor"))


@tvm.transform.module_pass(opt_level=0, name="smartmem.OwnStorages")
class OwnStorages:
    """Allocate a storage again where a branch has tensors in one that another branch allocates.

    Before::

        if c:
            storage = R.memory.alloc_storage(R.shape([72]), 0, "global", "float32")
            a = R.memory.alloc_tensor(storage, 0, R.shape([18]), "float32"); first(x, a)
        else:
            b = R.memory.alloc_tensor(storage, 0, R.shape([18]), "float32"); second(x, b)

    After::

        if c:
            storage = R.memory.alloc_storage(R.shape([72]), 0, "global", "float32")
            a = R.memory.alloc_tensor(storage, 0, R.shape([18]), "float32"); first(x, a)
        else:
            own = R.memory.alloc_storage(R.shape([72]), 0, "global", "float32")
            b = R.memory.alloc_tensor(own, 0, R.shape([18]), "float32"); second(x, b)

    ``StaticPlanBlockMemory`` reuses storages in textual order, as if both branches of an If ran one after the other:
    the second branch, and the code after the If, would read a register that was never written. Storages allocated
    before the If are shared with its branches.

    To be run after ``StaticPlanBlockMemory``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod` with branches."""
        new = mod.clone()
        for gvar, func in mod.functions_items():
            if not isinstance(func, relax.Function):
                continue
            body = _Scope(_storages(func)).sequence(func.body)
            if not body.same_as(func.body):
                new.update_func(gvar, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs))
        return new


def _storages(func: relax.Function) -> dict[relax.Var, ir.Call]:
    return {each.var: each.value for each in collect(func, relax.VarBinding) if _calls(each.value, _STORAGE)}


def _calls(value: relax.Expr | None, op: ir.Op) -> bool:
    return isinstance(value, ir.Call) and value.op.same_as(op)


@dataclass
class _Scope:
    """The storages that are visible in a branch.

    Attributes
    ----------
    storages : mapping
        All storages of the function -> their allocations.
    seen : dict
        Storage -> the variable that holds it, or its replacement, here.
    """

    storages: Mapping[relax.Var, ir.Call]
    seen: dict[relax.Var, relax.Var] = field(default_factory=dict)

    def sequence(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """Return a body with allocations of the storages that it lacks; itself if it lacks none."""
        blocks = [self._block(block) for block in body.blocks]
        same = all(new.same_as(old) for new, old in zip(blocks, body.blocks, strict=True))
        return body if same else _normalized(relax.SeqExpr(blocks, body.body))

    def _block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if binding.var in self.storages:
                self.seen[binding.var] = binding.var
            elif isinstance(value, relax.If):
                binding = self._choice(binding, value)
            elif _calls(value, _TENSOR):
                storage, *rest = value.args
                if storage not in self.seen:
                    self.seen[storage] = relax.Var(storage.name, storage.ty)
                    bindings.append(relax.VarBinding(self.seen[storage], self.storages[storage]))
                if not storage.same_as(self.seen[storage]):
                    call = relax.Call(value.op, [self.seen[storage], *rest], value.attrs, value.ty_args)
                    binding = relax.VarBinding(binding.var, _normalized(call))
            bindings.append(binding)
        same = all(new.same_as(old) for new, old in zip(bindings, block.bindings))
        return block if same else relax.BindingBlock(bindings)

    def _choice(self, binding: relax.VarBinding, choice: relax.If) -> relax.VarBinding:
        branches = choice.true_branch, choice.false_branch
        yes, no = (_Scope(self.storages, dict(self.seen)).sequence(each) for each in branches)
        if yes.same_as(branches[0]) and no.same_as(branches[1]):
            return binding
        return relax.VarBinding(binding.var, _normalized(relax.If(choice.cond, yes, no)))


def _normalized(value: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder().normalize(value)
