# SPDX-License-Identifier: Apache-2.0
"""WrapCasts: mask integers before a narrowing cast, where TVM assumes that they fit."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..ir.bounds import NO_BOUND
from ..ir.map_functions import map_functions
from ..ir.walk import collect

_BITS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}


@tvm.transform.module_pass(opt_level=0, name="smartmem.WrapCasts")
class WrapCasts:
    """Cut an integer off to the bits that it is cast to before the cast, where TVM knows that it may have more.

    Before::

        T.Cast("int32", x % 4294967296)

    After::

        T.Cast("int32", x % 4294967296 & 4294967295)

    The number and the machine code are the same. TVM 0.27 casts a value's bounds with the value when it binds it to a
    variable, and raises an error where a bound does not fit ("Literal value 4294967295 exceeds range of int32").
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        return map_functions(mod, wrapped)


def wrapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one PrimFunc rewritten; itself if the operands of all of its casts fit, or have no known bounds."""
    found = [cast for cast in collect(func.body, tirx.Cast) if _may_wrap(cast)]
    if not found:
        return func

    def rewrite(cast):
        return _wrap(cast) if _may_wrap(cast) else cast

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, rewrite)))


def _may_wrap(cast: tirx.Cast) -> bool:
    source, target = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if target not in _BITS or _BITS.get(source, 0) <= _BITS[target]:
        return False
    bits, unsigned = _BITS[target], target.startswith("u")
    least, most = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    bound = sym.Analyzer().const_int_bound(cast.value)
    ends = bound.min_value, bound.max_value
    return any(abs(end) < NO_BOUND and not least <= end <= most for end in ends)


def _wrap(cast: tirx.Cast) -> tirx.Cast:
    dtype = cast.value.ty.dtype
    return tirx.Cast(cast.ty.dtype, cast.value & tirx.const((1 << _BITS[str(cast.ty.dtype)]) - 1, dtype))
