# SPDX-License-Identifier: Apache-2.0
"""StoreBound: values bound to a variable and computed from bfloat16 are kept in memory instead."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect

_BFLOAT16 = "bfloat16"


@tvm.transform.module_pass(opt_level=0, name="smartmem.StoreBound")
class StoreBound:
    """Store what a statement gives a name, and makes of bfloat16, in memory of one element.

    Before::

        v: T.let[T.float32] = T.max(best[i], T.Cast("float32", x[i, k]))        # x is bfloat16
        best[i] = v

    After::

        stored = T.alloc_buffer((1,), "float32", scope="local")
        stored[0] = T.max(best[i], T.Cast("float32", x[i, k]))
        best[i] = stored[0]

    TVM 0.27 lowers bfloat16 to the integers of its bits, in stored values but not in bound ones: there it casts the
    bits as if they were a number. Reductions of pairs, such as argmax, bind their values. A code generator keeps the
    one element in a register. In a vectorized loop there is one element for each lane.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        return map_functions(mod, stored)


def stored(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one PrimFunc rewritten; itself if it binds no value computed from bfloat16."""
    named = [bind.var for bind in collect(func.body, tirx.Bind) if _reads_bfloat16(bind)]
    if not named:
        return func
    loops = _vector_loops(func.body)
    places = {var: _place(var, loops.get(var)) for var in named}

    def unnamed(block: tirx.SeqStmt) -> tirx.SeqStmt:
        return tirx.SeqStmt([part for each in block.seq for part in _parts(each, places, loops)])

    def allocated(loop: tirx.For) -> tirx.Stmt:
        names = (var for var in named if var in loops and loops[var].loop_var.same_as(loop.loop_var))
        own = [tirx.AllocBuffer(places[var][0]) for var in names]
        return tirx.SeqStmt([*own, loop]) if own else loop

    body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, unnamed))
    body = tvm_ffi.structural_map(body, (tirx.For, allocated))

    def load(var: tirx.Var):
        return tirx.BufferLoad(*places[var]) if var in places else var

    return func.with_body(tvm_ffi.structural_map(body, (tirx.Var, load)))


def _vector_loops(body: tirx.Stmt) -> dict[tirx.Var, tirx.For]:
    """Return, for each variable bound in a vectorized loop, that loop: the variable has a value for each lane."""
    loops = [loop for loop in collect(body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    return {bind.var: loop for loop in loops for bind in collect(loop.body, tirx.Bind)}


def _place(var: tirx.Var, loop: tirx.For | None) -> tuple[tirx.Buffer, list]:
    """Return a buffer for the value of a variable, and the index in it."""
    count, index = (1, 0) if loop is None else (loop.extent, loop.loop_var - loop.min)
    return tirx.decl_buffer((count,), var.ty.dtype, var.name, scope="local"), [index]


def _reads_bfloat16(bind: tirx.Bind) -> bool:
    numbers = [bind.var, *collect(bind.value, (ir.TensorLoad, tirx.Var, tirx.Cast))]
    return any(str(getattr(each.ty, "dtype", "")) == _BFLOAT16 for each in numbers)


def _parts(statement: tirx.Stmt, places: dict, loops: dict) -> list[tirx.Stmt]:
    if not isinstance(statement, tirx.Bind) or statement.var not in places:
        return [statement]
    buffer, index = places[statement.var]
    stored = tirx.BufferStore(buffer, statement.value, index)
    return [stored] if statement.var in loops else [tirx.AllocBuffer(buffer), stored]
