# SPDX-License-Identifier: Apache-2.0
"""A module of one model at several sizes: one public function for each size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .._tvm import renamed
from .mask_positions import LENGTH, Extent
from .public_functions import MAIN, public_functions
from .sizes import ARENA

SIZE = "smartmem.size"
"""Function attribute: the number of the function's size, from 0, in the order in which the user gave the sizes."""
TILE = "smartmem.tile"
"""Function attribute of a model with an open dimension, JSON: the ``items`` that the function computes, its predicted
``cost`` (steps of sums), ``least`` and ``most`` items of a call, ``axis`` and ``each`` (`analysis.items.Share`) of each
of the ``inputs`` and ``outputs``, null for one without items, and the ``group`` of functions that differ in the items
only. With ``length``, the items are positions up to which the function computes, which takes their number as its last
input (`ir.mask_positions`), and each of the inputs and outputs has a list of places, as positions may lie along two
axes, each with ``more`` and ``step`` if it has another number of positions (`mask_positions.Extent`); ``numbers`` has
those that tensors have; ``around`` then has ``least``, ``most``, ``inputs`` and ``outputs`` of items that are computed
one by one."""
REPEATED = "smartmem.repeated"
"""Module attribute, JSON: a list of the sizes that functions of other sizes compute, items at a time. Each has the name
of its ``function``, its ``number`` (`SIZE`) and its ``items``, ``tiles`` with ``function`` and ``items`` of each in
their order, and ``inputs`` and ``outputs`` as in `TILE`. With ``length``, one tile computes positions up to its
``items``, with their number as its last input."""
_COMMON = ("least", "most", "inputs", "outputs")
_ALLOCATE = "relax.memory.alloc_storage"


def with_sizes(modules: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """Return one module with the ``main`` of each of `modules`, called ``main_0``, ``main_1``, ...

    Parameters
    ----------
    modules : sequence of tvm.IRModule
        One model imported at several sizes. Their tensors may be shared, and stay shared.
    """
    whole = tvm.IRModule()
    for number, mod in enumerate(modules):
        whole = with_function(whole, mod, f"{MAIN}_{number}", number)
    return whole


def with_function(whole: tvm.IRModule, mod: tvm.IRModule, name: str, number: int) -> tvm.IRModule:
    """Add the ``main`` of a module, with its kernels, to a module of several sizes, and return that.

    Parameters
    ----------
    whole : tvm.IRModule
        Has no function of this size.
    name : str
        What the function of the size is called.
    number : int
        The number of the size.
    """
    ending = name.removeprefix(MAIN)
    names = {gvar: renamed(gvar, f"{gvar.name_hint}{ending}") for gvar in mod.get_global_vars()}
    for gvar, func in mod.functions_items():
        body = tvm_ffi.structural_map(func, (ir.GlobalVar, lambda each: names.get(each, each)))
        if "global_symbol" in (body.attrs or {}):
            body = body.with_attr("global_symbol", names[gvar].name_hint)
        if gvar.name_hint == MAIN:
            body = body.with_attr(SIZE, number).with_attr("global_symbol", names[gvar].name_hint)
        whole[names[gvar]] = body
    return whole


def size_functions(mod: tvm.IRModule) -> list[str]:
    """Return the functions of the sizes, in their order; none for a module of one size."""
    sizes = [(int(mod[name].attrs[SIZE]), name) for name in public_functions(mod) if SIZE in (mod[name].attrs or {})]
    return [name for _, name in sorted(sizes)]


def tile_groups(mod: tvm.IRModule) -> list[dict]:
    """Return the groups of functions of a module with an open dimension; none for any other module.

    Returns
    -------
    list of dict
        ``least``, ``most``, ``inputs`` and ``outputs`` as in `TILE`, and ``tiles``, each with ``function``, ``items``
        and ``cost``.
    """
    groups: dict[int, dict] = {}
    for name in size_functions(mod):
        facts = tile_of(mod[name])
        if facts is None:
            return []
        common = {key: facts[key] for key in (*_COMMON, "length", "around") if key in facts}
        group = groups.setdefault(facts["group"], {**common, "tiles": []})
        group["tiles"].append({"function": name, "items": facts["items"], "cost": facts["cost"]})
    return list(groups.values())


def tile_of(func: relax.Function) -> dict | None:
    """Return what `TILE` says of a function; None if it has none."""
    attrs = func.attrs or {}
    return json.loads(str(attrs[TILE])) if TILE in attrs else None


def repeated_sizes(mod: tvm.IRModule) -> list[dict]:
    """Return what `REPEATED` says of a module; an empty list if it says nothing."""
    return json.loads(str((mod.attrs or {}).get(REPEATED, "[]")))


def takes_length(func: relax.Function) -> bool:
    """Whether the last parameter of a function is the number of positions of a call."""
    names = (func.attrs or {}).get("input_names", ())
    return len(names) > 0 and str(names[-1]) == LENGTH and tile_of(func) is not None


def functions_of_length(groups: Sequence[Mapping]) -> list[str]:
    """Return those functions of `tile_groups` that take the number of positions of a call as their last input."""
    return [each["function"] for group in groups if group.get("length") for each in group["tiles"]]


def places_of(share: Mapping | Sequence[Mapping] | None) -> list[Mapping]:
    """Return the places of the items of an input or output of `TILE`: none, one, or, of positions, several."""
    return [] if share is None else [share] if isinstance(share, Mapping) else list(share)


def extent_at(place: Mapping) -> Extent:
    """Return how many elements a place of `places_of` has along its axis for a number of items, or a length."""
    return Extent(place["each"], place.get("more", 0), place.get("step", 1))


def open_shape(group: Mapping, shape: Sequence[int], number: int) -> list:
    """Return the shape of a group's input for people, with the ranges in place of its open dimensions."""
    along = {}
    for ranges in (group.get("around"), group):
        for each in places_of(ranges["inputs"][number]) if ranges is not None else ():
            along[each["axis"]] = span_text(ranges, each)
    return [along.get(axis, dim) for axis, dim in enumerate(shape)]


def span_text(group: Mapping, share: Mapping) -> str:
    """Return an open dimension of a group's input or output for people, as ``(1..64)`` or ``(1..64)*12``."""
    extent, text = extent_at(share), f"({group['least']}..{group['most']})"
    text = f"({text}{extent.more:+d})" if extent.more else text
    text = f"{text}//{extent.step}" if extent.step > 1 else text
    return f"{text}*{extent.each}" if extent.each > 1 else text


def with_kernels_once(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of several sizes in which equal kernels are one; any other module as it is.

    Parameters
    ----------
    mod : tvm.IRModule
        A graph of kernels, not scheduled yet.
    """
    if not size_functions(mod):
        return mod
    alike: dict[int, list[tuple[ir.GlobalVar, tirx.PrimFunc]]] = {}
    instead: dict[ir.GlobalVar, ir.GlobalVar] = {}
    for gvar, func in sorted(mod.functions_items(), key=lambda each: each[0].name_hint):
        if not isinstance(func, tirx.PrimFunc):
            continue
        plain = func.without_attr("global_symbol") if "global_symbol" in (func.attrs or {}) else func
        group = alike.setdefault(tvm_ffi.structural_hash(plain), [])
        same = next((first for first, other in group if tvm_ffi.structural_equal(plain, other)), None)
        if same is None:
            group.append((gvar, plain))
        else:
            instead[gvar] = same
    if not instead:
        return mod
    once = mod.clone()
    for gvar, func in mod.functions_items():
        if gvar in instead:
            del once[gvar]
        elif isinstance(func, relax.Function):
            once[gvar] = tvm_ffi.structural_map(func, (ir.GlobalVar, lambda each: instead.get(each, each)))
    return once


def with_common_arenas(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of several sizes whose arenas of one device have the bytes of the largest.

    TVM's allocator keeps a freed storage for the next request of exactly its bytes: with arenas of one size all
    functions run in the same memory, and each would keep its own otherwise.

    Parameters
    ----------
    mod : tvm.IRModule
        A module in which `PlanMemory` has made the arenas.
    """
    functions = {name: mod[name] for name in size_functions(mod)}
    most: dict[str, int] = {}
    for binding in (each for func in functions.values() for each in _arenas(func)):
        place = _place(binding.value)
        most[place] = max(most.get(place, 0), int(binding.value.args[0].values[0]))
    new = mod.clone() if most else mod
    for name, func in functions.items():
        if any(int(each.value.args[0].values[0]) < most[_place(each.value)] for each in _arenas(func)):
            new.update_func(mod.get_global_var(name), _with_arenas(func, most))
    return new


def _arenas(func: relax.Function) -> list[relax.VarBinding]:
    bindings = [each for block in func.body.blocks for each in block.bindings if isinstance(each, relax.VarBinding)]
    calls = [each for each in bindings if getattr(getattr(each.value, "op", None), "name", "") == _ALLOCATE]
    return [each for each in calls if each.var.name.startswith(ARENA)]


def _place(call: ir.Call) -> str:
    """Return the device and the memory scope of a storage."""
    return " ".join(map(str, call.args[1:3]))


def _with_arenas(func: relax.Function, most: dict[str, int]) -> relax.Function:
    arenas = {each.var: each.value for each in _arenas(func)}

    def written(binding: relax.Binding) -> relax.Binding:
        if binding.var not in arenas:
            return binding
        call = arenas[binding.var]
        size = relax.ShapeExpr([most[_place(call)]])
        larger = relax.op.memory.alloc_storage(size, *call.args[1:])
        return relax.VarBinding(binding.var, relax.BlockBuilder().normalize(larger))

    blocks = [relax.BindingBlock([written(each) for each in block.bindings]) for block in func.body.blocks]
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
