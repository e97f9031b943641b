# SPDX-License-Identifier: Apache-2.0
"""Exchange kernels for kernels that read constants in another form, and bring the constants of the calls into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .block import as_constant
from .graph import CALL_TIR, private_calls
from .kernel import Kernel, emit


@dataclass(frozen=True, eq=False)
class Exchange:
    """A kernel that replaces another one.

    Attributes
    ----------
    kernel : Kernel or PrimFunc
        The new kernel; a PrimFunc is used unchanged.
    forms : mapping
        Position of a constant -> its new values, from the old ones.
    added : sequence of (int, callable)
        Further constants, which are the new kernel's last inputs: position of an old one, and the new values from it.
    """

    kernel: Kernel | tirx.PrimFunc
    forms: Mapping[int, Callable[[np.ndarray], np.ndarray]]
    added: Sequence[tuple[int, Callable[[np.ndarray], np.ndarray]]] = ()


def exchange(mod: IRModule, exchanges: Mapping[ir.GlobalVar, Exchange]) -> IRModule:
    """Replace kernels, and put the constants in their new forms into the calls."""
    if not exchanges:
        return mod
    # A GlobalVar keeps the type of its function, so the new kernels get new variables, under the old names.
    kept = {gvar: func for gvar, func in mod.functions_items() if gvar not in exchanges}
    calls = _Calls(tvm.IRModule(kept, attrs=mod.attrs))
    for gvar, each in exchanges.items():
        whole = isinstance(each.kernel, tirx.PrimFunc)
        func = each.kernel if whole else emit(each.kernel, dict(mod[gvar].attrs))
        calls.exchanged[gvar] = calls.builder_.add_func(func, gvar.name_hint), each
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            calls.builder_.update_func(gvar, calls.visit_expr(func))
    return calls.builder_.get()


def constant_operands(mod: IRModule) -> dict[ir.GlobalVar, set[int]]:
    """Return, for each kernel that only ``call_tir`` calls, the positions that are constants in all calls."""

    def constants(call: ir.Call) -> set[int]:
        return {i for i, each in enumerate(_arguments(call)) if isinstance(each, ir.Constant)}

    always = {gvar: set.intersection(*map(constants, calls)) for gvar, calls in private_calls(mod).items()}
    return {gvar: positions for gvar, positions in always.items() if positions}


def constants_of(calls: Iterable[ir.Call], position: int) -> list[np.ndarray]:
    """Return the distinct values of an argument that is a constant in all calls of a kernel."""
    found: list = []
    for call in calls:
        each = _arguments(call)[position]
        if not any(each.same_as(other) for other in found):
            found.append(each)
    return [each.value.numpy() for each in found]


def _arguments(call: ir.Call) -> list:
    return list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else [call.args[1]]


@mutator
class _Calls(PyExprMutator):
    """Calls the exchanged kernels, with constants in the forms that these read."""

    def __init__(self, mod: IRModule):
        super().__init__(mod)
        self.exchanged: dict[ir.GlobalVar, tuple[ir.GlobalVar, Exchange]] = {}
        self.made: dict[tuple, relax.Constant] = {}  # calls that repeat a constant share what it becomes

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Exchange the kernel and the constants of one call."""
        call = self.visit_expr_post_order(call)
        if call.op != CALL_TIR or call.args[0] not in self.exchanged:
            return call
        gvar, each = self.exchanged[call.args[0]]
        arguments = _arguments(call)
        added = [self._formed(arguments[position], form) for position, form in each.added]
        for position, form in each.forms.items():
            arguments[position] = self._formed(arguments[position], form)
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else call.ty
        return relax.call_tir(gvar, relax.Tuple([*arguments, *added]), types)

    def _formed(self, constant: relax.Constant, form: Callable[[np.ndarray], np.ndarray]) -> relax.Constant:
        """Return a constant in another form; `form` is one object for all calls of a kernel."""
        key = id(form), constant.value
        if key not in self.made:
            self.made[key] = as_constant(form(constant.value.numpy()))
        return self.made[key]
