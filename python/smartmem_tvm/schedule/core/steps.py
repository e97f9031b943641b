# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: kernels with sequential loops over steps around their loop nests.

A block marks such a loop by an iterator of the type ``Ordered``: it scans.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx

from ...ir.walk import contains
from .nest import SERIAL, block
from .rule import FinishedSchedule


def has_steps(func: tirx.PrimFunc) -> bool:
    """Whether a block scans."""
    return contains(func.body, s_tir.SBlock, lambda each: any(it.iter_type == _SCANS for it in each.iter_vars))


def nest_by_nest(func: tirx.PrimFunc, make: Callable[[tirx.Stmt], tirx.Stmt]) -> FinishedSchedule:
    """Return `func` with `make` applied to each of its nests; the loops that blocks scan stay around them, serial."""
    root = func.body.block
    body = _within_steps(root.body, make)
    whole = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(root.alloc_buffers))
    return FinishedSchedule.of(func.with_body(s_tir.SBlockRealize([], True, whole)))


def _within_steps(body: tirx.Stmt, make: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    if isinstance(body, tirx.SeqStmt):
        return block(*(_within_steps(each, make) for each in body.seq))
    if isinstance(body, tirx.For) and contains(body.body, s_tir.SBlockRealize, lambda each: _scans(each, body)):
        return tirx.For(body.loop_var, body.min, body.extent, SERIAL, _within_steps(body.body, make))
    return make(body)


def points_of(nest: tirx.Stmt) -> tuple[dict, tirx.Stmt]:
    """Return the outer data-parallel loops of a nest as variable -> extent, all of one index type, and their body."""
    loops, inside = [], nest
    while isinstance(inside, tirx.For) and isinstance(inside.extent, tirx.IntImm) and int(inside.min) == 0:
        loops.append(inside)
        inside = inside.body
    if not isinstance(inside, s_tir.SBlockRealize):
        return {}, nest
    spatial = [
        value
        for it, value in zip(inside.block.iter_vars, inside.iter_values, strict=True)
        if it.iter_type == tirx.IterVar.DataPar
    ]
    extents: dict = {}
    while loops and any(loops[0].loop_var.same_as(value) for value in spatial):
        if extents and loops[0].loop_var.ty.dtype != next(iter(extents)).ty.dtype:
            break
        extents[loops[0].loop_var] = int(loops[0].extent)
        nest = loops.pop(0).body
    return extents, nest


_SCANS = tirx.IterVar.Ordered


def _scans(inside: s_tir.SBlockRealize, loop: tirx.For) -> bool:
    pairs = zip(inside.block.iter_vars, inside.iter_values, strict=True)
    return any(it.iter_type == _SCANS and loop.loop_var.same_as(value) for it, value in pairs)
