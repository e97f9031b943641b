# SPDX-License-Identifier: Apache-2.0
"""The ONNX operators that have a converter; all unsupported operators of a model are refused in one error."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import onnx
import tvm  # noqa: F401  (before its parts, which another thread that is importing it holds)
from tvm.relax.frontend.onnx import onnx_frontend

from smartmem_tvm._version import TVM_PINS
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import undecided
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.control_flow import RESOLVED
from smartmem_tvm.frontend.converters import CONVERTERS
from smartmem_tvm.frontend.converters.contrib_refused import reason
from smartmem_tvm.frontend.prepare import Known

# TVM finds a converter by the operator's name without its domain. These names of its table mean operators of the domain
# com.microsoft, even if ONNX itself has one of the same name (Attention, since opset 23); ours are `CONVERTERS`.
_CONTRIB = frozenset(
    (
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    )
)


def converter_name(node: onnx.NodeProto) -> str:
    """Return the name of an operator's converter, ours or TVM's."""
    label = walk.operator_label(node)
    return label if label in CONVERTERS else node.op_type


def known_operators() -> Known:
    """Return the operators that have a converter, ours or TVM's, or that are resolved before the importer runs."""
    names = {*RESOLVED, *onnx_frontend._get_convert_map()} - _CONTRIB
    return Known(frozenset(CONVERTERS), frozenset(names))


def unsupported_operators(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return (operator, node name) of each node that TVM cannot import, nested graphs included.

    Operators outside the ONNX domain are written ``domain.operator``; a node without a name has that of its first
    output.
    """
    known = known_operators()
    return [(walk.operator_label(node), walk.node_label(node)) for node in walk.nodes(model.graph) if not known(node)]


def _remedy(model: onnx.ModelProto, by_operator: Mapping[str, Sequence[str]]) -> str:
    usual = "export the model without them or simplify these nodes first"
    found = {undecided.remedy(model, label, usual) for labels in by_operator.values() for label in labels}
    return found.pop() if len(found) == 1 else usual


def refuse_unsupported(model: onnx.ModelProto, name: str) -> None:
    """Raise one UserError that names every unsupported operator with all its nodes, if there is any."""
    by_operator: dict[str, list[str]] = defaultdict(list)
    for operator, node in unsupported_operators(model):
        by_operator[operator].append(node)
    if not by_operator:
        return
    listing = "; ".join(
        f"{each} ({', '.join(dict.fromkeys(nodes))})" + (f": {why}" if (why := reason(each)) else "")
        for each, nodes in sorted(by_operator.items())
    )
    remedy = "" if all(map(reason, by_operator)) else f"; {_remedy(model, by_operator)}"
    raise UserError(
        f"{name} uses operators that the ONNX importer of TVM {TVM_PINS['apache-tvm']} does not have: "
        f"{listing}{remedy}."
    )
