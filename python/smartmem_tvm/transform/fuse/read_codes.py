# SPDX-License-Identifier: Apache-2.0
"""ReadCodes: products read weights as the integers and scales that they are stored as."""

from __future__ import annotations

import tvm
from tvm import ir

from ...ir.codes import NAME, ROWS, codes_of
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import Stage
from ...ir.walk import contains


@tvm.transform.module_pass(opt_level=0, name="smartmem.ReadCodes")
class ReadCodes:
    """Compute each number of a weight where a product reads it.

    Before::

        w[k, n] = q[k, n] * s[k // 32, n];   y[m, n] += x[m, k] * w[k, n]

    After::

        y[m, n] += x[m, k] * (q[k, n] * s[k // 32, n])

    The schedule rules copy a part of ``w`` into the cache where many rows read it, and never write it to memory. Rows
    that `RoundRows` has rounded are read in the same way.

    Refuses (leaves as it is) a reader without a sum that does not gather rows. Its weight is then computed in each
    inference.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every graph of `mod`."""
        found = any(gvar.name_hint.startswith((NAME, ROWS)) for gvar in mod.get_global_vars())
        return rewrite_graphs(mod, _read) if found else mod


def _read(graph: Graph) -> list[dict]:
    decisions = []
    for node in graph:
        if not _is_weight(node):
            continue
        readers = graph.readers(node.var)
        products = [
            each for each in readers if each.kernel is not None and any(map(_adds_or_gathers, each.kernel.stages))
        ]
        for reader in products:
            graph.absorb(reader, node, inline_output=True)
        decision = {"pass": "ReadCodes", "operator": node.members[-1]}
        if graph.readers(node.var) or graph.is_output(node.var):
            decisions.append({**decision, "action": "kept", "reason": "a reader has no sum and gathers no rows"})
        else:
            graph.remove(node)
            decisions.append({**decision, "action": "read", "into": [each.members[-1] for each in products]})
    return decisions


def _adds_or_gathers(stage: Stage) -> bool:
    """Whether a stage adds up, or reads at places that a tensor names, as rows of a table."""
    return bool(stage.reduction) or any(
        contains(place, ir.TensorLoad) for load in stage.loads for place in load.indices
    )


def _is_weight(node: Node) -> bool:
    """Whether a node computes a weight from constants, as `StoreCodes` writes it, or rows, as `RoundRows` does."""
    if node.kernel is None or len(node.kernel.stages) != 1 or not node.kernel.last.is_pointwise:
        return False
    known = all(isinstance(arg, ir.Constant) for arg in node.args) or node.members[-1].startswith(ROWS)
    return known and codes_of(node.kernel.last.body.value) is not None
