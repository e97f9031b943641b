# SPDX-License-Identifier: Apache-2.0
"""A Relax module with symbolic dimensions, which stay open as in `open_dimension`, and its ``main``, which takes any.

    main(x: (b, n, 64)):                                                 # b: items; n: a length of at most 128
      if b > 1:   low = main(x[:b // 2]);  high = main(x[b // 2:]);  return concat(low, high)
      if n <= 8:  return main_0(longer(x, 8), n)[:n]
      if n <= 16: return main_1(longer(x, 16), n)[:n]
      ...

``main`` is Relax, so that an executable needs nothing of this package when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from smartmem_tvm._tvm import with_type
from smartmem_tvm.analysis.items import Mixed
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.open_dimension import Range, functions_of
from smartmem_tvm.ir.index_map import variables
from smartmem_tvm.ir.public_functions import public_functions
from smartmem_tvm.ir.several_sizes import places_of, tile_groups, with_sizes
from smartmem_tvm.ir.symbolic_inputs import symbolic_functions

UPPER, LOWER = "tir_var_upper_bound", "tir_var_lower_bound"
"""Attributes of a function, TVM's: name of a symbolic dimension -> the largest, or the least, number for it."""
_INPUTS = "input_names"  # attribute of a function
_UNBOUND = 64  # items: a number of items needs no bound, and there are tiles of at most so many (`open_dimension`)


class NotOpen(Exception):
    """The module has no symbolic inputs that stay open; the message says why, and is empty if there are none."""


@dataclass(frozen=True, eq=False)
class OpenedModule:
    """A module with symbolic dimensions.

    Attributes
    ----------
    module : tvm.IRModule
        A function for each tile, or each capacity.
    name : str
        Of the function that the module had.
    function : relax.Function
        That function.
    symbols : list of tirx.Var
        Its symbolic dimensions.
    """

    module: tvm.IRModule
    name: str
    function: relax.Function
    symbols: list[tirx.Var]


def opened_module(mod: tvm.IRModule) -> OpenedModule:
    """Return a module whose symbolic dimensions are items or bounded lengths.

    Raises
    ------
    NotOpen
        If no input has a symbolic dimension, or one cannot stay open.
    """
    found = symbolic_functions(mod)
    if not found:
        raise NotOpen("")
    if len(public_functions(mod)) > 1:
        raise NotOpen(f"function '{next(iter(found))}' has symbolic dimensions, and the module has other functions")
    ((name, symbols),) = found.items()
    func, spans = mod[name], [_span(mod[name], symbol) for symbol in symbols]
    if not all(isinstance(each.ty, relax.TensorType) for each in func.params):
        raise NotOpen(f"function '{name}' has inputs that are no tensors")
    if len(symbols) > 2:
        raise NotOpen(f"function '{name}' has {len(symbols)} symbolic dimensions, and two of a model stay open")

    def at(*numbers: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"function '{name}'", numbers=numbers)

    def load(model: SimpleNamespace) -> tvm.IRModule:
        return _bound(mod, name, {symbol.name: number for symbol, number in zip(symbols, model.numbers, strict=True)})

    try:
        made = functions_of(0, tuple(each or Range(1, _UNBOUND) for each in spans), at, load)
    except (Mixed, UserError) as reason:
        raise NotOpen(str(reason).rstrip(".").split(": give a list")[0]) from None
    opened = with_sizes([each for _, each in made])
    (group,) = tile_groups(opened)
    lengths = [each for each, span in zip(symbols, spans) if span is None]
    if "length" in group and lengths and not _is_batch(func, group, lengths):
        raise NotOpen(f"dimension '{lengths[0].name}' of function '{name}' is a length without a bound ({UPPER})")
    return OpenedModule(opened, name, func, symbols)


def _is_batch(func: relax.Function, group: dict, symbols: Sequence[tirx.Var]) -> bool:
    """Whether symbolic dimensions are the items around a length."""
    around = _symbol_of(func, group["around"]) if "around" in group else None
    return all(around is not None and symbol.same_as(around) for symbol in symbols)


def _symbol_of(func: relax.Function, group: dict) -> tirx.Var:
    """Return the symbolic dimension that a group of functions leaves open."""
    pairs = zip(func.params, group["inputs"])
    return next(variables(param.ty.shape[place["axis"]])[0] for param, share in pairs for place in places_of(share))


def _span(func: relax.Function, symbol: tirx.Var) -> Range | None:
    attrs = func.attrs or {}
    upper, lower = ({str(k): int(v) for k, v in (attrs.get(each) or {}).items()} for each in (UPPER, LOWER))
    return Range(max(1, lower.get(symbol.name, 1)), upper[symbol.name]) if symbol.name in upper else None


def _bound(mod: tvm.IRModule, name: str, numbers: dict[str, int]) -> tvm.IRModule:
    """Return the function of a module at some sizes, as ``main``."""
    func = mod[name].without_attr("global_symbol") if "global_symbol" in (mod[name].attrs or {}) else mod[name]
    alone = tvm.IRModule({gvar: each for gvar, each in mod.functions_items() if isinstance(each, tirx.PrimFunc)})
    for each in (UPPER, LOWER):
        func = func.without_attr(each) if each in (func.attrs or {}) else func
    if _INPUTS not in (func.attrs or {}):
        func = func.with_attr(_INPUTS, [param.name for param in func.params])
    alone["main"] = func
    bound = relax.transform.BindSymbolicVars(numbers)(alone)
    return relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(bound))


def with_dispatch(opened: OpenedModule, mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module with the function that takes any sizes, and runs those of `mod`.

    Parameters
    ----------
    opened : OpenedModule
    mod : tvm.IRModule
        Its module, with kernels.
    """
    return _Dispatch(opened, mod).module()


class _Dispatch:
    def __init__(self, opened: OpenedModule, mod: tvm.IRModule):
        self.function, self.name, self.mod = opened.function, opened.name, mod.clone()
        (self.group,) = tile_groups(mod)  # not those of `opened`: `choose-tiles` leaves some out
        self.takes_length = bool(self.group.get("length"))

    def module(self) -> tvm.IRModule:
        func = self.function
        self.builder = relax.BlockBuilder(self.mod)
        self.main = self.builder.add_func(relax.Function.create_empty(func.params, func.ret_ty, False), self.name)
        runs = self._capacities if self.takes_length else self._tiles
        if "around" in self.group:
            count = self._count(self.group["around"])
            body = self._if(count > 1, lambda: self._apart("halves", self._halves(self.group["around"], 1)), runs)
        else:
            body = runs()
        new = relax.Function(func.params, body, func.ret_ty, is_pure=False)
        self.builder.update_func(self.main, new.with_attr("global_symbol", self.name))
        return self.builder.get()

    def _count(self, group: dict):
        """Return the number of items, or the length, of a call as an expression."""
        pairs = zip(self.function.params, group["inputs"], strict=True)
        size, each = next((p.ty.shape[at["axis"]], at["each"]) for p, share in pairs for at in places_of(share))
        return tirx.floordiv(size, tirx.const(each, "int64")) if each > 1 else size

    def _capacities(self) -> relax.SeqExpr:
        tiles = sorted(self.group["tiles"], key=lambda each: each["items"])
        last = tiles[-1]
        return self._first_of(
            tiles, lambda: self._apart("too_long", self._one(last["function"], last["items"], too_long=True))
        )

    def _tiles(self) -> relax.SeqExpr:
        tiles = sorted(self.group["tiles"], key=lambda each: each["items"])
        return self._first_of(tiles, lambda: self._apart("halves", self._halves(self.group, tiles[-1]["items"])))

    def _first_of(self, tiles: list, otherwise: Callable) -> relax.SeqExpr:
        if not tiles:
            return otherwise()
        tile, *rest = tiles
        name, items = tile["function"], tile["items"]
        fits = self._count(self.group) <= items
        return self._if(
            fits, lambda: self._apart(name, self._one(name, items)), lambda: self._first_of(rest, otherwise)
        )

    def _apart(self, name: str, body: relax.SeqExpr) -> relax.SeqExpr:
        """Return a call of a function with this body: TVM's lowering fails at tuples that are made in a branch."""
        params, ret = self.function.params, self.function.ret_ty
        own = relax.utils.copy_with_new_vars(relax.Function(params, body, ret, is_pure=False))
        gvar = self.builder.add_func(own, f"{name}_of_any_size")
        bindings: list[relax.Binding] = []
        return _sequence(bindings, self._bind(bindings, relax.Call(gvar, list(params)), ret))

    def _if(self, condition, yes: Callable, no: Callable) -> relax.SeqExpr:
        found = relax.Var("found", self.function.ret_ty)
        return _sequence([relax.VarBinding(found, relax.If(condition, yes(), no()))], found)

    def _one(self, function: str, items: int, too_long: bool = False) -> relax.SeqExpr:
        """Return a call of one of the functions, for inputs with zeros behind their items or positions.

        Inputs that are too long are cast to the bound, which the virtual machine refuses.
        """
        bindings: list[relax.Binding] = []
        given = []
        for number, param in enumerate(self.function.params):
            sizes = {at["axis"]: at["each"] * items for at in places_of(self.group["inputs"][number])}
            if "around" in self.group:  # one item is left there
                sizes |= {at["axis"]: at["each"] for at in places_of(self.group["around"]["inputs"][number])}
            if too_long and sizes:
                shape = [sizes.get(axis, dim) for axis, dim in enumerate(param.ty.shape)]
                given.append(self._cast(bindings, param, relax.TensorType(shape, param.ty.dtype)))
            else:
                given.append(self._emit(bindings, _longer(sizes), param) if sizes else param)
        if self.takes_length:
            given.append(self._emit(bindings, _number, self._count(self.group)))
        gvar = with_type(self.mod.get_global_var(function), self.mod[function])
        results = self._bind(bindings, relax.Call(gvar, given), self.mod[function].ret_ty)
        return self._returned(bindings, results, lambda var, ty, share: self._cut(bindings, var, ty, share))

    def _cut(self, bindings: list, var: relax.Var, ty: relax.TensorType, share) -> relax.Var:
        if not share:
            return var
        open_dims = [place["axis"] for place in places_of(share)]
        sizes = [ty.shape[axis] for axis in open_dims]
        return self._emit(bindings, lambda y, *ends: _beginning(y, dict(zip(open_dims, ends))), var, *sizes)

    def _halves(self, group: dict, step: int) -> relax.SeqExpr:
        """Return two calls of the function itself, the first one with a multiple of `step` of the items."""
        bindings: list[relax.Binding] = []
        count = self._count(group)
        low = tirx.floordiv(tirx.floordiv(count + (step - 1), tirx.const(step, "int64")), tirx.const(2, "int64")) * step
        results = []
        for first, number in ((tirx.const(0, "int64"), low), (low, count - low)):
            given = [
                self._emit(bindings, _part(share["axis"], share["each"]), param, first, number) if share else param
                for param, share in zip(self.function.params, group["inputs"], strict=True)
            ]
            results.append(self._bind(bindings, relax.Call(self.main, given), None))

        def joined(pair: tuple, ty: relax.TensorType, share) -> relax.Var:
            return self._emit(bindings, _joined(share["axis"]), *pair, ty.shape[share["axis"]]) if share else pair[0]

        return self._returned(bindings, results, joined)

    def _returned(self, bindings: list, results, finish: Callable) -> relax.SeqExpr:
        """Return a sequence whose value are the results, each finished, with the types of the function."""
        ty, outputs = self.function.ret_ty, self.group["outputs"]
        if "around" in self.group and isinstance(results, list):
            outputs = self.group["around"]["outputs"]
        if not isinstance(ty, relax.TupleType):
            each = finish(tuple(results) if isinstance(results, list) else results, ty, outputs[0])
            return _sequence(bindings, self._cast(bindings, each, ty))
        parts = []
        for number, (field, share) in enumerate(zip(ty.fields, outputs, strict=True)):
            if isinstance(results, list):
                var = tuple(self._bind(bindings, relax.TupleGetItem(each, number), None) for each in results)
            else:
                var = self._bind(bindings, relax.TupleGetItem(results, number), None)
            parts.append(self._cast(bindings, finish(var, field, share), field))
        return _sequence(bindings, self._bind(bindings, relax.Tuple(parts), ty))

    def _cast(self, bindings: list, value: relax.Expr, ty) -> relax.Var:
        if tvm_ffi.structural_equal(value.ty, ty, map_free_vars=False):
            return value
        var = relax.Var("result", ty)
        bindings.append(relax.MatchCast(var, value, ty))
        return var

    def _emit(self, bindings: list, compute: Callable, *args) -> relax.Var:
        call = self.builder.call_te(compute, *args, primfunc_name_hint="open_dimension")
        return self._bind(bindings, call, None)

    def _bind(self, bindings: list, value: relax.Expr, ty) -> relax.Var:
        value = self.builder.normalize(value)
        var = relax.Var("part", ty if ty is not None else value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var


def _sequence(bindings: list, value: relax.Expr) -> relax.SeqExpr:
    return relax.SeqExpr([relax.BindingBlock(bindings)], value)


def _longer(sizes: dict[int, int]) -> Callable:
    """Return what copies a tensor to the beginning of a longer one of these sizes by axis, with zeros behind it."""

    def compute(x: te.Tensor) -> te.Tensor:
        shape = [sizes.get(axis, dim) for axis, dim in enumerate(x.shape)]

        def value(*at):
            inside = [at[axis] < x.shape[axis] for axis in sizes]
            return tirx.if_then_else(tirx.all(*inside), x(*at), tirx.const(0, x.dtype))

        return te.compute(shape, value)

    return compute


def _beginning(x: te.Tensor, sizes: dict) -> te.Tensor:
    return te.compute([sizes.get(axis, dim) for axis, dim in enumerate(x.shape)], lambda *at: x(*at))


def _number(n) -> te.Tensor:
    return te.compute((1,), lambda _: tirx.Cast("int64", n))


def _part(axis: int, each: int) -> Callable:
    """Return what copies some items of a tensor."""

    def compute(x: te.Tensor, first, number) -> te.Tensor:
        shape = [number * each if place == axis else dim for place, dim in enumerate(x.shape)]
        return te.compute(
            shape, lambda *at: x(*(i + first * each if place == axis else i for place, i in enumerate(at)))
        )

    return compute


def _joined(axis: int) -> Callable:
    """Return what puts two tensors behind each other."""

    def compute(low: te.Tensor, high: te.Tensor, size) -> te.Tensor:
        end = low.shape[axis]
        shape = [size if place == axis else dim for place, dim in enumerate(low.shape)]

        def value(*at):
            behind = [i - end if place == axis else i for place, i in enumerate(at)]
            return tirx.if_then_else(at[axis] < end, low(*at), high(*behind))

        return te.compute(shape, value)

    return compute
