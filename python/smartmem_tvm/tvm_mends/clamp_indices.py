# SPDX-License-Identifier: Apache-2.0
"""ClampIndices: run-time indices that may count from the end are wrapped by a comparison."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ..ir.map_functions import map_functions
from ..ir.walk import collect


@tvm.transform.module_pass(opt_level=0, name="smartmem.ClampIndices")
class ClampIndices:
    """Find the place of an index from the end by a comparison in place of two remainders.

    Before::

        x[T.truncmod(T.truncmod(i[j], n) + n, n)]

    After::

        x[T.max(T.min(T.Select(i[j] < 0, i[j] + n, i[j]), n - 1), 0)]

    Both are equal for -n <= i < n. For any other index, which ONNX leaves undefined, both stay within the tensor. LLVM
    22 generates wrong vector code for the former where `i` has 32 bits and the index 64 (docs/tvm-issues.md).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every PrimFunc of `mod`."""
        return map_functions(mod, _in_range)


def _in_range(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if not any(map(_wraps, collect(func.body, tirx.Mod))):
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Mod, _clamped)))


def _wraps(rest: tirx.Mod) -> bool:
    """Whether `rest` is the outer remainder of ``((i % n) + n) % n``."""
    inner = rest.a.a if isinstance(rest.a, tirx.Add) else None
    numbers = [rest.b, rest.a.b, inner.b] if isinstance(inner, tirx.Mod) else [None]
    return all(isinstance(each, tirx.IntImm) and int(each) == int(rest.b) for each in numbers)


def _clamped(rest: tirx.Mod):
    if not _wraps(rest):
        return rest
    index, zero = rest.a.a.a, tirx.const(0, rest.ty.dtype)
    place = tirx.Select(tirx.LT(index, zero), tirx.Add(index, rest.b), index)
    return tirx.Max(tirx.Min(place, tirx.const(int(rest.b) - 1, rest.ty.dtype)), zero)
