# SPDX-License-Identifier: Apache-2.0
"""Kernels whose loop nests stand within loops over steps, each of which waits for the one before: recurrent layers.

A block says so by an iterator that scans.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx

from ...ir.walk import contains
from .nest import SERIAL, block
from .rule import Written


def has_steps(func: tirx.PrimFunc) -> bool:
    """Whether a block scans."""
    return contains(func.body, s_tir.SBlock, lambda each: any(it.iter_type == _SCANS for it in each.iter_vars))


def nest_by_nest(func: tirx.PrimFunc, make: Callable[[tirx.Stmt], tirx.Stmt]) -> Written:
    """`func` with what `make` makes of each of its nests; loops that blocks scan stay around them, in order."""
    root = func.body.block
    body = _within_steps(root.body, make)
    whole = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(root.alloc_buffers))
    return Written.of(func.with_body(s_tir.SBlockRealize([], True, whole)))


def _within_steps(body: tirx.Stmt, make: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    if isinstance(body, tirx.SeqStmt):
        return block(*(_within_steps(each, make) for each in body.seq))
    if isinstance(body, tirx.For) and contains(body.body, s_tir.SBlockRealize, lambda each: _scans(each, body)):
        return tirx.For(body.loop_var, body.min, body.extent, SERIAL, _within_steps(body.body, make))
    return make(body)


def points_of(nest: tirx.Stmt) -> tuple[dict, tirx.Stmt]:
    """The outer loops of a nest, of one index type, each round of which is a point of its own, and what is in them."""
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
