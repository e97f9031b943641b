# SPDX-License-Identifier: Apache-2.0
"""RoundToBytes: quantizations without divisions, roundings and conversions, on CPU targets."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import ir, tirx

from ...cpu_features import has_fma
from ...ir.exchange_constants import constant_operands, constants_of
from ...ir.graph import private_calls
from ...ir.quantizations import Quantization, by_one_scale

_LEAST, _MOST = 2.0**-60, 2.0**60
"""Scales whose inverse, and what that leaves, are far from the ends of float32. Chosen."""


@tvm.transform.module_pass(opt_level=0, name="smartmem.RoundToBytes")
class RoundToBytes:
    """Quantize by two products and two additions in place of a division, a rounding and a conversion, on CPUs.

    Before, in a scheduled kernel::

        T.Cast("int32", T.min(T.max(T.nearbyint(x[i] / s[0]) + T.Cast("float32", z[0]), 0.0), 255.0))

    After, with ``r = 1 / s[0]``, ``l = fma(-s[0], r, 1) * r`` and ``b = min(max(x[i], (0 - z) * s), (255 - z) * s)``::

        T.reinterpret("int32", fma(b, r, b * l) + 12582912.0) - (1262485504 - z)

    Bounds come first, so that infinite numbers become finite ones; LLVM computes them, and both parts of the inverse,
    once before the loops. The sum is the quotient to the last bit: equal to a division for 460 million numbers, those
    next to each place where a quotient is rounded to a half of an integer from -256 to 511 or to its neighbours, for
    40,000 scales (2026-11-29). The addition of 1.5 * 2**23 rounds to the nearest integer, ties to even, and leaves it
    in the last bits.

    Refuses (leaves the division) scales that are no constants, several, below 2**-60 or above 2**60, and CPUs without
    fused multiply-adds; then, as where no quotient is rounded, only the rounding changes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every scheduled kernel of `mod` if the current target is a CPU."""
        target = tvm.target.Target.current(allow_none=True)
        if target is not None and target.kind.name != "llvm":
            return mod
        fused = target is not None and has_fma(target)
        constants, calls, found = constant_operands(mod) if fused else {}, None, {}
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or "tirx.is_scheduled" not in (func.attrs or {}):
                continue
            if constants.get(gvar) and calls is None:
                calls = private_calls(mod)
            scales = {
                func.params[n]
                for n in constants.get(gvar, ())
                if _is_scale(func, n) and all(_LEAST < each.item() < _MOST for each in constants_of(calls[gvar], n))
            }
            body = tvm_ffi.structural_map(func.body, (tirx.Cast, lambda cast, scales=scales: _rounded(cast, scales)))
            if not body.same_as(func.body):
                found[gvar] = func.with_body(body)
        if not found:
            return mod
        mod = mod.clone()
        for gvar, func in found.items():
            mod.update_func(gvar, func)
        return mod


def _is_scale(func: tirx.PrimFunc, position: int) -> bool:
    buffer = func.params[position]
    return str(buffer.dtype) == "float32" and all(int(size) == 1 for size in buffer.shape)


def _rounded(cast: tirx.Cast, scales: set) -> ir.Expr:
    quantization = Quantization.of(cast)
    if quantization is None:
        return cast
    low, high = quantization.ends
    parts = by_one_scale(quantization.value)
    if parts is None or not isinstance(parts[1], ir.TensorLoad) or parts[1].source not in scales:
        return _integer(quantization, quantization.value, low, high, lambda bounded: bounded)
    dividend, scale = parts
    one = tirx.const(1, "float32")
    inverse = one / scale
    rest = _fma(tirx.const(-1, "float32") * scale, inverse, one) * inverse
    return _integer(quantization, dividend, low * scale, high * scale, lambda x: _fma(x, inverse, x * rest))


def _integer(quantization: Quantization, value, low, high, of: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """Return ``of(min(max(value, low), high))`` as an integer, with one instruction for each bound.

    These are unknown numbers. LLVM's `maximum` of two such takes seven instructions, to return NaN if one is, and
    tell 0 from -0; a comparison and a choice are the processor's own, which returns the bound for NaN.
    """
    given, raised, bounded = (tirx.Var(name, "float32") for name in ("given", "raised", "bounded"))
    chosen = tirx.Select(raised < high, raised, high)
    inner = tirx.Let(bounded, chosen, quantization.integer(of(bounded)))
    return tirx.Let(given, value, tirx.Let(raised, tirx.Select(given > low, given, low), inner))


def _fma(a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    return tirx.call_llvm_pure_intrin("float32", "llvm.fma", a, b, c)
