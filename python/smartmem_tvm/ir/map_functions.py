# SPDX-License-Identifier: Apache-2.0
"""Apply a rewrite of single kernels to a module."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, tirx


def map_functions(mod: IRModule, rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> IRModule:
    """Apply `rewrite` to every PrimFunc of `mod`, scheduled or not; return `mod` itself if nothing changes."""
    functions = [(gvar, func) for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    changed = [(gvar, new) for gvar, func in functions if not (new := rewrite(func)).same_as(func)]
    if not changed:
        return mod
    mod = mod.clone()
    for gvar, new in changed:
        mod.update_func(gvar, new)
    return mod
