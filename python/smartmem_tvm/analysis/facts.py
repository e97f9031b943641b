# SPDX-License-Identifier: Apache-2.0
"""DNNFusion's extended computational graph (section 4.1): the facts about operators that fusion and rewriting need."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, tirx

from ..ir.graph import Graph, Node
from ..ir.index_map import function_name
from ..ir.kernel import Kernel
from ..ir.movement import movement
from ..ir.sizes import data_bytes
from ..ir.walk import collect_outside, loads
from ..tables.mapping_type import TABLE_3, FusionVerdict, MappingType
from ..tables.quadrant import Quadrant
from .classify import mapping_type, quadrant, reduction_dims
from .laws import laws

_OPERATIONS = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
    ir.Call,
)


@dataclass(frozen=True)
class Facts:
    """One operator of the extended computational graph.

    Attributes
    ----------
    mapping_type : MappingType or None
        How output elements depend on input elements (DNNFusion Table 2); None for a function without loop structure.
    quadrant : Quadrant or None
        SmartMem's operator type; None if `mapping_type` is None.
    ir_removable : bool
        Whether the intermediate result may be removed: it is no result of the function, and every reader could absorb
        the operator (`ir_removable`).
    properties : frozenset of str
        Algebraic laws, in the words of `tables.properties`: ``associative``, ``distributive over add``.
    reduction_dims : tuple of (str, tuple of int)
        For each aggregated operand, its name (``constant`` for a weight) and the dimensions (SmartMem 3.2.2).
    bytes_of_result : int
        Size of the result in bytes.
    flops : int
        Arithmetic operations on tensor elements; a function call such as exp counts as one.
    """

    mapping_type: MappingType | None
    quadrant: Quadrant | None
    ir_removable: bool
    properties: frozenset[str]
    reduction_dims: tuple[tuple[str, tuple[int, ...]], ...]
    bytes_of_result: int
    flops: int


def graph_facts(graph: Graph) -> dict[Node, Facts]:
    """Return the facts of every node of a graph, in execution order, without changing the graph."""
    types = {node: mapping_type(node.kernel, node.constants) for node in graph if node.kernel is not None}
    return {node: _facts(graph, node, types) for node in graph}


def _facts(graph: Graph, node: Node, types: dict[Node, MappingType]) -> Facts:
    if node.kernel is None:
        return Facts(None, None, False, frozenset(), (), data_bytes(node.var.ty), 0)
    return Facts(
        mapping_type=types[node],
        quadrant=quadrant(node.kernel),
        ir_removable=ir_removable(graph, node, types),
        properties=frozenset(map(str, laws(node.kernel))),
        reduction_dims=_aggregated(node),
        bytes_of_result=data_bytes(node.var.ty),
        flops=flops(node.kernel),
    )


def ir_removable(graph: Graph, node: Node, types: dict[Node, MappingType]) -> bool:
    """Whether a node's result could be computed inside its readers only (DNNFusion's ``IR_removable``).

    The result must not be a result of the function, it must have readers, every reader must have a functional form, and
    no pair may be red in Table 3. A data movement folds into its readers' indices (SmartMem 3.2), so Table 3 does not
    restrict it. `analysis.fusion` decides whether the removal pays, and checks several fusions together.
    """
    readers = graph.readers(node.var)
    if graph.is_output(node.var) or not readers or any(reader.kernel is None for reader in readers):
        return False
    if movement(node.kernel) is not None:
        return True
    return all(TABLE_3[types[node], types[reader]].verdict is not FusionVerdict.NEVER for reader in readers)


def _aggregated(node: Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    dims = reduction_dims(node.kernel)
    names = (arg.name if isinstance(arg, ir.Var) else "constant" for arg in node.args)
    pairs = ((name, dims[buffer.name]) for name, buffer in zip(names, node.kernel.inputs, strict=True))
    return tuple((name, along) for name, along in pairs if along)


def flops(kernel: Kernel) -> int:
    """Return the arithmetic operations on tensor elements of one launch, without those on indices and conditions."""
    return sum(math.prod(stage.extents.values()) * _operations(stage.body) for stage in kernel.stages)


def _operations(body: tirx.Stmt) -> int:
    """Count the operators and calls with a tensor element among their operands."""
    found = collect_outside(body, _OPERATIONS, skip=ir.TensorLoad)
    return sum(bool(loads(each)) and not _chooses(each) for each in found)


def _chooses(expr) -> bool:
    return isinstance(expr, ir.Call) and function_name(expr) in ("if_then_else", "reinterpret")
