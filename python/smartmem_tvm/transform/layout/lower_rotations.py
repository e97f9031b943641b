# SPDX-License-Identifier: Apache-2.0
"""LowerRotations: ``(i + c) % n`` without a modulo."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...ir.index_map import division_count
from ...ir.kernel import Stage, rewrite_stages
from ...ir.walk import contains


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerRotations")
class LowerRotations:
    """Write the wrap-around of a roll as a compare and a subtraction.

    Before::

        x[(i + 53) % 56]

    After::

        x[i + 53 - select(i + 53 >= 56, 56, 0)]

    A compare and a subtraction are cheaper than a division.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc of `mod`; others are left alone."""
        return rewrite_stages(mod, _lower)


def _lower(stage: Stage) -> Stage:
    if not contains(stage.body, tirx.FloorMod):
        return stage
    analyzer = sym.Analyzer()
    for it in stage.iters:
        analyzer.bind(it.var, it.dom)

    def rewrite(modulo):
        shift = modulo.a.b if isinstance(modulo.a, tirx.Add) else None
        size = int(modulo.b) if isinstance(modulo.b, tirx.IntImm) else 0
        if not isinstance(shift, tirx.IntImm) or size <= 0:
            return modulo
        inside = analyzer.simplify(tirx.floormod(modulo.a.a, modulo.b))
        if division_count(inside) > division_count(modulo.a.a):
            return modulo  # no rotation: a division would be left
        moved = inside + tirx.const(int(shift) % size, inside.ty.dtype)
        dtype = moved.ty.dtype
        return moved - tirx.Select(moved >= tirx.const(size, dtype), modulo.b, tirx.const(0, dtype))

    body = tvm_ffi.structural_map(stage.body, (tirx.FloorMod, rewrite))
    if body.same_as(stage.body):
        return stage
    return Stage(stage.name, stage.iters, body, stage.init, stage.annotations)
