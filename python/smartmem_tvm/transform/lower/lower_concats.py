# SPDX-License-Identifier: Apache-2.0
"""LowerConcats: concatenations of many tensors become concatenations of few."""

from __future__ import annotations

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.rewrite_calls import rewrite_calls
from ...tables.fusion_policy import MOST_INPUTS

_CONCAT, _STACK = ir.Op.get("relax.concat"), ir.Op.get("relax.stack")
_TOGETHER = 32  # tensors of one concatenation, where the list is longer than a kernel's parameters may be


@tvm.transform.module_pass(opt_level=0, name="smartmem.LowerConcats")
class LowerConcats:
    """Concatenate many tensors in groups, and then the groups.

    Before::

        y = concat([x0, x1, ..., x299])

    After::

        y = concat([concat([x0, ..., x31]), concat([x32, ..., x63]), ...])

    The kernel of a concatenation is a chain of conditions as long as its list, with one parameter for each tensor, and
    devices limit the number of parameters (`tables.fusion_policy.MOST_INPUTS`). ``stack`` is treated alike. Lists
    within the limit stay as they are.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Lowering(mod))


@mutator
class _Lowering(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        joins = call.op in (_CONCAT, _STACK) and isinstance(call.args[0], relax.Tuple)
        parts = list(call.args[0].fields) if joins else []
        if len(parts) <= MOST_INPUTS:
            return call
        if call.op == _STACK:
            parts = [self.builder_.emit(relax.op.expand_dims(part, call.attrs.axis)) for part in parts]
        while len(parts) > _TOGETHER:
            groups = [parts[start : start + _TOGETHER] for start in range(0, len(parts), _TOGETHER)]
            parts = [self._concat(group, call.attrs.axis) for group in groups]
        return self._concat(parts, call.attrs.axis)

    def _concat(self, parts: list, axis: int) -> relax.Expr:
        return self.builder_.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]
