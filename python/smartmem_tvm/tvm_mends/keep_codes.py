# SPDX-License-Identifier: Apache-2.0
"""TVM's FoldConstant without the weights that StoreCodes keeps: it would compute their floats."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.codes import NAME
from ..ir.graph import CALL_TIR
from ..ir.rewrite_calls import rewrite_calls

_HIDDEN = "smartmem.hidden/"


def fold_constant() -> tvm.transform.Pass:
    """Return relax.FoldConstant for modules that may have weights in codes.

    FoldConstant folds each ``call_tir`` whose arguments are constants. While it runs, these calls are calls of a
    packed function of another name, which it does not know.
    """
    fold = relax.transform.FoldConstant()

    @tvm.transform.module_pass(opt_level=0, name="FoldConstant")
    def run(mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        names = {gvar.name_hint: gvar for gvar in mod.get_global_vars() if gvar.name_hint.startswith(NAME)}
        if not names:
            return fold(mod)
        hidden = rewrite_calls(mod, _Renamed(mod, lambda call: _hidden(call, names)))
        return rewrite_calls(folded := fold(hidden), _Renamed(folded, _shown(folded)))

    return run


def _hidden(call: relax.Call, names: dict) -> relax.Expr:
    if call.op != CALL_TIR or call.args[0].name_hint not in names:
        return call
    return relax.call_dps_packed(_HIDDEN + call.args[0].name_hint, call.args[1], call.ty)


def _shown(mod: tvm.IRModule) -> Callable:
    def show(call: relax.Call) -> relax.Expr:
        packed = getattr(call.op, "name", "") == "relax.call_dps_packed"
        name = str(getattr(call.args[0], "global_symbol", "")) if packed else ""
        if not name.startswith(_HIDDEN):
            return call
        return relax.call_tir(mod.get_global_var(name.removeprefix(_HIDDEN)), call.args[1], call.ty)

    return show


@mutator
class _Renamed(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, change: Callable):
        super().__init__(mod)
        self.change = change

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        return self.change(super().visit_call_(call))
