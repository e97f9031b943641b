# SPDX-License-Identifier: Apache-2.0
"""The public functions of a Relax module, by name."""

from __future__ import annotations

import tvm
from tvm import ir, relax

from .walk import collect

MAIN = "main"


def public_functions(mod: tvm.IRModule) -> list[str]:
    """Names of the Relax functions with a global symbol, and of ``main`` even without one, sorted."""
    return sorted(
        gvar.name_hint
        for gvar, func in mod.functions_items()
        if isinstance(func, relax.Function) and (gvar.name_hint == MAIN or "global_symbol" in (func.attrs or {}))
    )


def entry_functions(mod: tvm.IRModule) -> list[str]:
    """Return the public functions that no Relax function of the module calls: the caller passes their arguments."""
    relaxed = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    called = {var.name_hint for func in relaxed for var in collect(func.body, ir.GlobalVar)}
    return [name for name in public_functions(mod) if name not in called]


def default_function(mod: tvm.IRModule) -> str | None:
    """Return ``main``, else the only public function, else None."""
    names = public_functions(mod)
    return MAIN if MAIN in names else names[0] if len(names) == 1 else None


def input_names(func: relax.Function) -> list[str]:
    """Return the names of a function's inputs: those of a model's file, else those of the parameters.

    Parameters that `deploy.weights.lift_weights` added for weights have none.
    """
    attrs = func.attrs or {}
    if "input_names" in attrs:
        return list(map(str, attrs["input_names"]))
    return [param.name for param in list(func.params)[: int(attrs["num_input"]) if "num_input" in attrs else None]]
