# SPDX-License-Identifier: Apache-2.0
"""JoinSlices: kernels that compute slices of a tensor write into that tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...ir.aliases import Aliases
from ...ir.allocations import allocates, is_packed
from ...ir.sizes import JOIN


@tvm.transform.module_pass(opt_level=0, name="smartmem.JoinSlices")
class JoinSlices:
    """Let kernels write their slices of a result where these belong in it (see `SliceWeights`).

    Before::

        a = R.builtin.alloc_tensor((4, 16)); first(x, a)
        b = R.builtin.alloc_tensor((4, 16)); second(x, b)
        y = R.builtin.alloc_tensor((4, 32)); smartmem.join(a, b, y)

    After, where ``second_16`` stores at ``y[i, j + 16]``::

        y = R.builtin.alloc_tensor((4, 32)); first_0(x, y); second_16(x, y)

    Run the pass after kernels are scheduled, each as if its slice were a whole tensor, and after ``CallTIRRewrite``.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        joiner = _Joiner(mod, relax.BlockBuilder(mod))
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                joiner.join(gvar, func)
        return joiner.builder.get()


@dataclass(frozen=True)
class _Place:
    """The place of a slice in its tensor."""

    whole: relax.VarBinding  # the allocation of the whole tensor
    dim: int
    begin: int


@dataclass
class _Joiner:
    mod: tvm.IRModule
    builder: relax.BlockBuilder
    moved: dict[tuple, ir.GlobalVar] = field(default_factory=dict)

    def join(self, gvar: ir.GlobalVar, func: relax.Function) -> None:
        """Join the slices of one function, in place."""
        places = _places(func)
        if not places:
            return
        blocks = [relax.BindingBlock(self._block(block, places)) for block in func.body.blocks]
        body = relax.SeqExpr(blocks, func.body.body)
        self.builder.update_func(gvar, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs))

    def _block(self, block: relax.BindingBlock, places: dict[relax.Var, _Place]) -> list[relax.Binding]:
        made: list[relax.Binding] = []
        wholes = {place.whole.var for place in places.values()}
        allocated: set = set()
        names = Aliases()  # of the variables of slices
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if binding.var in places and isinstance(value, ir.Call):
                names.bind(binding.var, binding.var)
                whole = places[binding.var].whole
                if whole.var not in allocated:
                    allocated.add(whole.var)
                    made.append(whole)
            elif (
                binding.var in wholes
                or is_packed(value, JOIN)
                or (names.used(value) and names.follow(binding.var, value))
            ):
                continue
            elif isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                made.append(relax.VarBinding(binding.var, self._call(value, places)))
            else:
                made.append(binding)
        return made

    def _call(self, call: ir.Call, places: dict[relax.Var, _Place]) -> ir.Call:
        args, callee = list(call.args), call.op
        for number, arg in enumerate(args):
            place = places.get(arg) if isinstance(arg, ir.Var) else None
            if place is not None:
                args[number] = place.whole.var
                callee = self._at(callee, number, place)
        return call if callee is call.op else relax.Call(callee, args, call.attrs, call.ty_args)

    def _at(self, gvar: ir.GlobalVar, number: int, place: _Place) -> ir.GlobalVar:
        """Return the kernel with one of its parameters a slice of a tensor."""
        shape = tuple(int(dim) for dim in place.whole.value.args[0])
        key = gvar, number, place.dim, place.begin, shape
        if key not in self.moved:
            func = moved(self.mod[gvar], number, place.dim, place.begin, shape)
            # The symbol belongs to the kernel that this one replaces, so it is dropped.
            func = func.without_attr("global_symbol") if "global_symbol" in (func.attrs or {}) else func
            self.moved[key] = self.builder.add_func(func, f"{gvar.name_hint}_at_{place.begin}")
        return self.moved[key]


def moved(func: tirx.PrimFunc, number: int, dim: int, begin: int, shape: tuple[int, ...]) -> tirx.PrimFunc:
    """Return a kernel whose parameter is a slice of a tensor of `shape`, from `begin` on along dimension `dim`."""
    old = func.params[number]
    new = tirx.decl_buffer(list(shape), old.dtype, old.name)

    def at(indices) -> list:
        return [i + tirx.const(begin, i.ty.dtype) if d == dim else i for d, i in enumerate(indices)]

    def load(each):
        return new[tuple(at(each.indices))] if each.source.same_as(old) else each

    def store(each):
        return tirx.BufferStore(new, each.value, at(each.indices)) if each.buffer.same_as(old) else each

    def region(each):
        if not each.source.same_as(old):
            return each
        ranges = list(each.region)
        ranges[dim] = ir.Range.from_min_extent(at([r.min for r in ranges])[dim], ranges[dim].extent)
        return tirx.BufferRegion(new, ranges)

    body = func.body
    for kind, change in ((ir.TensorLoad, load), (tirx.BufferStore, store), (ir.TensorRegion, region)):
        body = tvm_ffi.structural_map(body, (kind, change))
    params = [new if n == number else param for n, param in enumerate(func.params)]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _places(func: relax.Function) -> dict[relax.Var, _Place]:
    """Return the allocations of slices and their places."""
    aliases, places = Aliases(), {}
    for binding in (b for block in func.body.blocks for b in block.bindings):
        value = getattr(binding, "value", None)
        if allocates(value):
            aliases.bind(binding.var, binding)
        elif not aliases.follow(binding.var, value) and is_packed(value, JOIN):
            *parts, whole = (aliases.used(arg)[0] for arg in value.args)
            begin = 0
            for part in parts:
                sizes = [list(map(int, each.value.args[0])) for each in (part, whole)]
                dim = next(d for d, (one, all_) in enumerate(zip(*sizes, strict=True)) if one != all_)
                places[part.var] = _Place(whole, dim, begin)
                begin += sizes[0][dim]
    return places
