# SPDX-License-Identifier: Apache-2.0
"""NormsIntoProducts: a product of few rows computes the norm of its rows by itself."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx

from ...analysis.classify import reduces
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import Opaque, emit


@tvm.transform.module_pass(opt_level=0, name="smartmem.NormsIntoProducts")
class NormsIntoProducts:
    """Let the thread blocks of a product of few rows compute the norm of these rows, which they read anyway.

    Before::

        n = norm(x)                            # x * rsqrt(mean(x * x) + eps): a launch that one thread block works on
        y = matmul(n, w)

    After::

        y = norm_matmul(x, w)                  # each thread block adds up the row first

    Refused are

    1. norms that something else reads too,
    2. kernels that `refusal` speaks against: those that the rule for products of few rows does not take.

    Parameters
    ----------
    refusal : callable
        Kernel -> why it cannot be scheduled so, or an empty string.
    """

    def __init__(self, refusal: Callable[[tirx.PrimFunc], str]):
        self.refusal = refusal

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, self._run)

    def _run(self, graph: Graph) -> list[dict]:
        log = []
        for node in graph:
            for norm in _norms(graph, node):
                decision = {"pass": "NormsIntoProducts", "operator": norm.members[-1]}
                try:
                    trial = graph.absorbing(node, [(norm, False)])
                    why = self.refusal(emit(trial.kernel, dict(trial.attrs)))
                except Opaque as reason:
                    why = str(reason)
                if why:
                    log.append({**decision, "action": "kept", "reason": why})
                    continue
                graph.take(node, trial)
                graph.remove(norm)
                why = "thread blocks of the product read its rows anyway"
                log.append({**decision, "action": "fused", "into": [node.var.name], "reason": why})
        return log


def _norms(graph: Graph, node: Node) -> list[Node]:
    """Return the kernels with one sum whose only reader is a product."""
    if node.kernel is None or not reduces(node.kernel):
        return []
    found = [each for each in map(graph.producer, node.operands) if each is not None and each.kernel is not None]
    mine = [each for each in found if not graph.is_output(each.var) and graph.readers(each.var) == [node]]
    return [each for each in mine if _is_norm(each)]


def _is_norm(node: Node) -> bool:
    stages = node.kernel.stages
    return len(node.kernel.outputs) == 1 and bool(stages[0].reduction) and sum(map(_reduces, stages)) == 1


def _reduces(stage) -> bool:
    return bool(stage.reduction)
