# SPDX-License-Identifier: Apache-2.0
"""RepeatItems: the function of a size that ShareItems or ShareLengths has left out runs the kernels of other sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from ...ir.graph import MEMBERS
from ...ir.kernel import substitute
from ...ir.mask_positions import LENGTH
from ...ir.several_sizes import REPEATED, SIZE, TILE, extent_at, repeated_sizes
from ...ir.sizes import number_bytes

_ALIGNMENT = 64  # bytes, TVM's: where kernels expect tensors to begin
_TOGETHER = 32  # tensors of one concatenation, as of `LowerConcats`: devices limit the parameters of a kernel


@tvm.transform.module_pass(opt_level=0, name="smartmem.RepeatItems")
class RepeatItems:
    """Make the functions of sizes that functions of other sizes compute, from their kernels.

    Before, with ``main_1`` in an attribute of the module (`ShareItems`)::

        main_0(x: (1, 64)):
            return softmax(x)

    After::

        main_1(x: (2, 64)):
            return concat(softmax(x[0:1]), softmax(x[1:2]))

    Or, with ``main_1`` a function of up to 64 positions that takes their number (`ShareLengths`)::

        main_0(x: (48, 8)):
            return positions(zeros_behind(x, 64), 48)[0:48]

    All kernels are calls of one function, so that memory is planned for them together: a tile takes the place of the
    one before.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to a module of several sizes."""
        if REPEATED not in (mod.attrs or {}):
            return mod
        builder = relax.BlockBuilder(mod.without_attr(REPEATED))
        made: dict[str, relax.Function] = {}
        for each in repeated_sizes(mod):
            name = each["function"]
            if each.get("length"):
                made[name] = _AtCapacity([mod[tile["function"]] for tile in each["tiles"]], builder, each).function()
            else:  # a tile may be a size that a larger one computes
                tiles = [made.get(tile["function"]) or mod[tile["function"]] for tile in each["tiles"]]
                made[name] = _Repeated(tiles, builder, each).function()
            if any(gvar.name_hint == name for gvar in mod.get_global_vars()):
                builder.update_func(mod.get_global_var(name), made[name])
            else:
                builder.add_func(made[name], name)
        return builder.get()


@dataclass(eq=False)
class _Repeated:
    """The function of a size, from the functions of its tiles."""

    tiles: Sequence[relax.Function]
    builder: relax.BlockBuilder
    facts: Mapping
    bindings: list = field(default_factory=list)
    members: dict = field(default_factory=dict)

    def function(self) -> relax.Function:
        """Return the function of the size."""
        like = self.tiles[0]
        # Only a block of dataflow has variables of its own; the one with control flow has none.
        self.flows = all(isinstance(block, relax.DataflowBlock) for tile in self.tiles for block in tile.body.blocks)
        params = self._params()
        results = self._results(params)
        outputs = [
            self._output(name, parts, share)
            for name, parts, share in zip(_names(like), zip(*results), self.facts["outputs"], strict=True)
        ]
        several = isinstance(like.ret_ty, relax.TupleType)
        value = relax.Tuple(outputs) if several else outputs[0]
        block = relax.DataflowBlock if self.flows else relax.BindingBlock
        body = self.builder.normalize(relax.SeqExpr([block(self.bindings)], value))
        attrs = {**self._attrs(like), SIZE: self.facts["number"], "global_symbol": self.facts["function"]}
        attrs[MEMBERS] = json.dumps(self.members)
        types = [each.ty for each in outputs]
        ret = relax.TupleType(types) if several else types[0]
        return relax.Function(params, body, ret, like.is_pure, tvm.ir.make_node("ir.DictAttrs", **attrs))

    def _attrs(self, like: relax.Function) -> Mapping:
        return like.attrs

    def _params(self) -> list[relax.Var]:
        items = self.facts["tiles"][0]["items"]
        return [
            relax.Var(param.name, self._resized(param.ty, share, items))
            for param, share in zip(self.tiles[0].params, self.facts["inputs"], strict=True)
        ]

    def _results(self, params: Sequence[relax.Var]) -> list[list[relax.Expr]]:
        """Bind what the tiles compute, and return the results of each."""
        results, first = [], 0
        for number, tile in enumerate(self.tiles):
            count = self.facts["tiles"][number]["items"]
            given = [
                self._items(param, share, first, count) if share else param
                for param, share in zip(params, self.facts["inputs"], strict=True)
            ]
            results.append(self._inlined(tile, given, number))
            first += count
        return results

    def _resized(self, ty: relax.TensorType, share: Mapping | None, items: int) -> relax.TensorType:
        if share is None:
            return ty
        shape = [int(dim) for dim in ty.shape]
        shape[share["axis"]] = shape[share["axis"]] // items * self.facts["items"]
        return relax.TensorType(shape, ty.dtype)

    def _inlined(self, tile: relax.Function, given: Sequence[relax.Expr], number: int) -> list[relax.Expr]:
        """Bind what a tile computes of these inputs, and return its results."""
        new = dict(zip(tile.params, given, strict=True))
        values = {}
        members = json.loads(str((tile.attrs or {}).get(MEMBERS, "{}")))
        for binding in (each for block in tile.body.blocks for each in block.bindings):
            name = f"{binding.var.name}_{number}"
            value, cast = substitute(binding.value, new), isinstance(binding, relax.MatchCast)
            var = self._variable(name, binding.ty if cast else binding.var.ty)
            self.bindings.append(relax.MatchCast(var, value, binding.ty) if cast else relax.VarBinding(var, value))
            new[binding.var], values[var] = var, value
            if binding.var.name in members:
                self.members[name] = members[binding.var.name]
        result = substitute(tile.body.body, new)
        result = values.get(result, result) if isinstance(result, relax.Var) else result
        if isinstance(result, relax.Tuple):
            return list(result.fields)
        if isinstance(tile.ret_ty, relax.TupleType):
            return [
                self._bind(relax.TupleGetItem(result, each), f"item_{number}")
                for each in range(len(tile.ret_ty.fields))
            ]
        return [substitute(tile.body.body, new)]

    def _items(self, param: relax.Var, share: Mapping, first: int, count: int) -> relax.Var:
        """Return items of an input: in its memory if they are there in a row, at an address as kernels expect it."""
        axis, each = share["axis"], share["each"]
        dims = [int(dim) for dim in param.ty.shape]
        begin = first * each * prod(dims[axis + 1 :]) * number_bytes(str(param.ty.dtype))
        name = f"{param.name}_{first}"
        if prod(dims[:axis]) > 1 or begin % _ALIGNMENT:
            return self._emit(_part(axis, first * each, count * each), "strided_slice", name, param)
        dims[axis] = count * each
        view = self._bind(relax.op.memory.view(param, dims, param.ty.dtype, begin), name)
        return self._bind(relax.op.memory.ensure_zero_offset(view), name)

    def _output(self, name: str, parts: Sequence[relax.Expr], share: Mapping | None) -> relax.Var:
        value = parts[0]
        if share is not None:
            groups = list(parts)
            while len(groups) > 1:
                several = [groups[start : start + _TOGETHER] for start in range(0, len(groups), _TOGETHER)]
                groups = [self._emit(_joined(share["axis"]), "concat", name, *each) for each in several]
            (value,) = groups
        return self._bind(value, name, output=True)

    def _emit(self, compute: Callable, operator: str, name: str, *args: relax.Expr) -> relax.Var:
        var = self._bind(self.builder.call_te(compute, *args, primfunc_name_hint=operator), name)
        self.members[name] = ([f"{operator} {name}"], [])
        return var

    def _bind(self, value: relax.Expr, name: str, output: bool = False) -> relax.Var:
        value = self.builder.normalize(value)
        var = relax.Var(name, value.ty) if output else self._variable(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _variable(self, name: str, ty) -> relax.Var:
        return relax.DataflowVar(name, ty) if self.flows else relax.Var(name, ty)


class _AtCapacity(_Repeated):
    """The function of a size, from a function that takes up to a capacity of positions, and their number."""

    def _attrs(self, like: relax.Function) -> Mapping:
        attrs = {key: value for key, value in like.attrs.items() if key != TILE}
        attrs["input_names"] = [str(name) for name in attrs["input_names"] if str(name) != LENGTH]
        return {**attrs, "num_input": int(attrs["num_input"]) - 1} if "num_input" in attrs else attrs

    def _params(self) -> list[relax.Var]:
        own = self.tiles[0].params[:-1]
        shapes = [self._shape(param.ty, places) for param, places in zip(own, self.facts["inputs"], strict=True)]
        return [
            relax.Var(param.name, relax.TensorType(shape, param.ty.dtype))
            for param, shape in zip(own, shapes, strict=True)
        ]

    def _results(self, params: Sequence[relax.Var]) -> list[list[relax.Expr]]:
        (tile,) = self.tiles
        given = []
        for param, like in zip(params, tile.params):
            shape = [int(dim) for dim in like.ty.shape]
            longer = shape != [int(dim) for dim in param.ty.shape]
            given.append(self._emit(_longer(shape), "zeros_behind", param.name, param) if longer else param)
        length = relax.const(np.array([self.facts["items"]], "int64"), "int64")
        return [self._inlined(tile, [*given, length], 0)]

    def _output(self, name: str, parts: Sequence[relax.Expr], share: Sequence[Mapping]) -> relax.Var:
        (value,) = parts
        shape = self._shape(value.ty, share)
        if shape != [int(dim) for dim in value.ty.shape]:
            value = self._emit(_beginning(shape), "strided_slice", name, value)
        return self._bind(value, name, output=True)

    def _shape(self, ty: relax.TensorType, places: Sequence[Mapping]) -> list[int]:
        """Return the shape of a tensor for the size's length."""
        shape = [int(dim) for dim in ty.shape]
        for place in places:
            shape[place["axis"]] = extent_at(place).of(self.facts["items"])
        return shape


def _names(func: relax.Function) -> list[str]:
    count = len(func.ret_ty.fields) if isinstance(func.ret_ty, relax.TupleType) else 1
    known = [str(name) for name in (func.attrs or {}).get("output_names", ())]
    return known if len(known) == count else [f"output_{number}" for number in range(count)]


def _part(axis: int, first: int, count: int) -> Callable:
    """Return what copies some elements of a tensor along an axis."""

    def compute(x: te.Tensor) -> te.Tensor:
        shape = [count if place == axis else dim for place, dim in enumerate(x.shape)]
        return te.compute(shape, lambda *at: x(*at[:axis], at[axis] + first, *at[axis + 1 :]))

    return compute


def _longer(shape: Sequence[int]) -> Callable:
    """Return what writes zeros behind the positions of a tensor."""

    def compute(x: te.Tensor) -> te.Tensor:
        def at(*places):
            inside = [place < size for place, size, longer in zip(places, x.shape, shape) if int(size) != longer]
            return tirx.if_then_else(tirx.all(*inside), x(*places), tirx.const(0, x.dtype))

        return te.compute(shape, at)

    return compute


def _beginning(shape: Sequence[int]) -> Callable:
    """Return what copies the beginning of a tensor."""
    return lambda x: te.compute(shape, lambda *at: x(*at))


def _joined(axis: int) -> Callable:
    """Return what puts tensors behind each other."""
    return lambda *parts: topi.concatenate(parts, axis)
