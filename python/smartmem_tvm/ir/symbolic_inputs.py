# SPDX-License-Identifier: Apache-2.0
"""Inputs of functions whose sizes are symbolic."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from .index_map import variables
from .public_functions import public_functions


def symbols_of(func: relax.Function) -> list[tirx.Var]:
    """Return the symbolic dimensions of a function's inputs, each once, in their order."""
    dims = [dim for param in func.params if isinstance(param.ty, relax.TensorType) for dim in param.ty.shape or ()]
    found: list[tirx.Var] = []
    for var in (each for dim in dims for each in variables(dim)):
        if not any(var.same_as(each) for each in found):
            found.append(var)
    return found


def symbolic_functions(mod: tvm.IRModule) -> dict[str, list[tirx.Var]]:
    """Return the public functions whose inputs have symbolic dimensions, with these."""
    found = {name: symbols_of(mod[name]) for name in public_functions(mod)}
    return {name: symbols for name, symbols in found.items() if symbols}
