# SPDX-License-Identifier: Apache-2.0
"""RoundFactors: schedules may round the factors of float32 products, for matrix instructions."""

from __future__ import annotations

from functools import partial

import tvm

from ...analysis.row_chain import factors, summand
from ...ir.graph import Graph, append_log, rewrite_graphs
from ...ir.kernel import FACTORS, Kernel
from ...ir.walk import loads


@tvm.transform.module_pass(opt_level=0, name="smartmem.RoundFactors")
class RoundFactors:
    """Allow schedules to round the factors of products, and nothing else.

    Before::

        acc[i, j] += float(x[i, k]) * w[k, j]                       # x bfloat16, w float32

    After, the kernel is the same and has the attribute ``smartmem.factors = "bfloat16"``: a rule with matrix
    instructions multiplies ``bfloat16(w[k, j])``, any other rule the float32 number. Sums, the statistics of rows and
    values computed from them stay float32.

    Parameters
    ----------
    kind : str
        ``bfloat16`` or ``tf32``.
    refusal : str
        Reason why the target has no such instructions; then no kernel is marked, and the log says so.
    """

    def __init__(self, kind: str, refusal: str = ""):
        self.kind, self.refusal = kind, refusal

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        if self.refusal:
            said = {"pass": "RoundFactors", "tensor": "all", "multiplied": "float32", "reason": self.refusal}
            return append_log(mod, [said])
        return rewrite_graphs(mod, partial(_round_factors, kind=self.kind))


def _round_factors(graph: Graph, kind: str) -> list[dict]:
    log = []
    for node in graph:
        if node.kernel is not None and _multiplies(node.kernel):
            node.attrs = {**node.attrs, FACTORS: kind}
            reason = "sums and all that is no product stay float32"
            log.append({"pass": "RoundFactors", "tensor": node.var.name, "multiplied": kind, "reason": reason})
    return log


def _multiplies(kernel: Kernel) -> bool:
    """Whether a stage sums up products of tensors."""
    terms = [term for term in map(summand, kernel.stages) if term is not None]
    floats = [term for term in terms if str(term.ty.dtype) == "float32"]
    return any(sum(bool(loads(factor)) for factor in factors(term)) > 1 for term in floats)
