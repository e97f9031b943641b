# SPDX-License-Identifier: Apache-2.0
"""FuseSymbolic: TVM's own fusion takes the kernels over tensors of unknown size."""

from __future__ import annotations

import logging

import tvm
from tvm import IRModule, ir, relax, tirx

from ...ir.graph import CALL_TIR, append_log, forget_members
from ...ir.kernel import Opaque, parse
from ...ir.walk import collect

_logger = logging.getLogger(__name__)
_PATTERN = "op_pattern"
_OPAQUE = 8  # TVM's kOpaque: TVM fuses such a kernel with no other


@tvm.transform.module_pass(opt_level=0, name="smartmem.FuseSymbolic")
class FuseSymbolic:
    """Leave kernels over tensors of unknown size to TVM's fusion, and say so.

    Before (``n`` is symbolic)::

        a: (n, 64) = matmul(x, w);   b: (n, 64) = add(a, bias);   c: (n, 8, 8) = reshape(b)

    After::

        b: (n, 64) = fused_matmul_add(x, w, bias);   c: (n, 8, 8) = relax.reshape(b)      # the same memory

    The passes before this one compose index maps under known ranges of their indices, and leave such kernels as they
    are. ``FuseOps``, ``FuseTIR`` and ``RewriteDataflowReshape`` of TVM's default pipeline take them. Kernels with sums
    over known sizes stay as the passes before made them, and so do functions without a kernel of unknown size.
    """

    def transform_module(self, mod: IRModule, _ctx) -> IRModule:
        """Apply to every Relax function of `mod` with a ``call_tir`` of unknown sizes."""
        calls = {
            gvar: _kernel_calls(func)
            for gvar, func in mod.functions_items()
            if isinstance(func, relax.Function) and "Primitive" not in (func.attrs or {})
        }
        found = {gvar: named for gvar, each in calls.items() if (named := [n for n in each if _is_symbolic(n[1])])}
        if not found:
            return mod
        reasons = {gvar.name_hint: _reason(mod[gvar], named) for gvar, named in found.items()}
        _warn(reasons)
        elsewhere = {call.args[0] for gvar, each in calls.items() if gvar not in found for _, call in each}
        fused = _fuse(mod, list(found), elsewhere)
        log = [{"operator": f"function {name}", "reason": reason} for name, reason in reasons.items()]
        return append_log(fused, [{"pass": "FuseSymbolic", "action": "left to TVM", **each} for each in log])


def _kernel_calls(func: relax.Function) -> list[tuple[relax.Var, ir.Call]]:
    bound = [(each.var, each.value) for each in collect(func, relax.VarBinding)]
    return [(var, value) for var, value in bound if isinstance(value, ir.Call) and value.op == CALL_TIR]


def _is_symbolic(call: ir.Call) -> bool:
    return len(call.args) > 2 or any(_unknown(ty) for ty in _tensors(call.args[1].ty) + _tensors(call.ty))


def _tensors(ty: ir.Type) -> list[relax.TensorType]:
    if isinstance(ty, relax.TupleType):
        return [tensor for field in ty.fields for tensor in _tensors(field)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def _unknown(ty: relax.TensorType) -> str:
    """Say which dimension is symbolic; empty if none is."""
    if not isinstance(ty.shape, relax.ShapeExpr):
        return "its shape"
    return next((f"dimension {at} ({dim})" for at, dim in enumerate(ty.shape) if not isinstance(dim, tirx.IntImm)), "")


def _reason(func: relax.Function, calls: list[tuple[relax.Var, ir.Call]]) -> str:
    """Say which tensor of the function has no known size: an input, if one of them has none."""
    for var in (*func.params, *(var for var, _ in calls)):
        for ty in _tensors(var.ty):
            if what := _unknown(ty):
                return f"{what} of '{var.name}' is unknown"
    return "a kernel takes numbers that are known at run time only"


def _warn(reasons: dict[str, str]) -> None:
    what = "; ".join(f"function '{name}', as {reason}" for name, reason in reasons.items())
    _logger.warning("kernels over tensors of unknown size are fused and scheduled as TVM does it: %s.", what)


def _fuse(mod: IRModule, names: list[ir.GlobalVar], elsewhere: set[ir.GlobalVar]) -> IRModule:
    """Return the module with these functions fused by TVM; kernels of other functions, `elsewhere`, stay."""
    annotated = relax.transform.AnnotateTIROpPattern()(mod)
    for gvar, func in _kernels(annotated):
        if gvar in elsewhere or _sums_known_sizes(func):
            annotated[gvar] = func.with_attr(_PATTERN, _OPAQUE)
    fused = relax.transform.FuseTIR()(relax.transform.FuseOps()(annotated))
    viewed = relax.transform.RewriteDataflowReshape()(fused)
    for gvar in names:
        fused[gvar] = forget_members(mod[gvar], viewed[gvar])
    given = {gvar: func.attrs[_PATTERN] for gvar, func in _kernels(mod) if _PATTERN in (func.attrs or {})}
    for gvar, func in _kernels(fused):
        plain = func.without_attr(_PATTERN) if _PATTERN in (func.attrs or {}) else func
        fused[gvar] = plain.with_attr(_PATTERN, given[gvar]) if gvar in given else plain
    return relax.transform.DeadCodeElimination()(fused)


def _kernels(mod: IRModule) -> list[tuple[ir.GlobalVar, tirx.PrimFunc]]:
    return [(gvar, func) for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]


def _sums_known_sizes(func: tirx.PrimFunc) -> bool:
    try:
        return any(stage.reduction for stage in parse(func).stages)
    except Opaque:
        return False
