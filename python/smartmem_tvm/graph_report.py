# SPDX-License-Identifier: Apache-2.0
"""The cost of a compiled graph, and the decisions of the passes that made it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import tvm
from tvm import ir, relax, tirx

from .analysis.facts import Facts, graph_facts
from .analysis.transitions import Strided, strided
from .errors import UserError
from .ir.compose import simplify, split_outputs, tidy
from .ir.graph import CALL_TIR, MEMBERS, Node, describe, graphs, read_log
from .ir.kernel import Kernel, Opaque, parse
from .ir.movement import movement
from .ir.public_functions import MAIN, default_function, public_functions
from .ir.sizes import data_bytes
from .planner.storage_order import ORDER_PASSES


@dataclass(frozen=True)
class GraphCost:
    """Cost of one inference, read from the module after the graph passes.

    Attributes
    ----------
    kernels : int
        ``call_tir`` bindings: kernels launched for one inference.
    layout_kernels : int
        Kernels all of whose outputs are pure data movements.
    layout_transitions : int
        Tensors whose stored order is not the one that a reader wants: each costs a copy, which is a layout kernel, or a
        strided access (`analysis.transitions.strided`).
    bytes_moved : dict
        Bytes read and written at kernel boundaries: ``activations`` (tensors computed from the input, and the input)
        and ``weights`` (constants, and parameters that were constants). Each operand counts once per kernel, with its
        whole size.
    """

    kernels: int
    layout_kernels: int
    layout_transitions: int
    bytes_moved: dict[str, int]

    def as_dict(self) -> dict:
        """Return the cost as plain data for JSON."""
        return asdict(self)


def graph_cost(mod: tvm.IRModule, function: str | None = None) -> GraphCost:
    """Count the kernels of a function, the bytes they move, and the tensors stored in the wrong order.

    Parameters
    ----------
    mod : tvm.IRModule
        A module whose operators are ``call_tir`` bindings of one dataflow block (ours or TVM's default pipeline's).
    function : str, optional
        The function's name; by default ``main``, or the only public function.

    Raises
    ------
    UserError
        If there is no such function, or several and none is named.
    """
    kernels = layout = 0
    traffic = {"activations": 0, "weights": 0}
    kinds: dict = {}  # PrimFunc -> whether it only moves data
    name = _function(mod, function)
    main = mod[name]
    weights = list(main.params)[int((main.attrs or {}).get("num_input", len(main.params))) :]
    for binding in (b for block in main.body.blocks for b in block.bindings):
        call = getattr(binding, "value", None)
        if not isinstance(call, ir.Call) or call.op != CALL_TIR:
            continue
        gvar, operands = call.args[0], call.args[1]
        kernels += 1
        if gvar not in kinds:
            kinds[gvar] = only_moves_data(mod[gvar])
        layout += kinds[gvar]
        for operand in operands.fields if isinstance(operands, relax.Tuple) else [operands]:
            constant = isinstance(operand, ir.Constant) or operand in weights
            traffic["weights" if constant else "activations"] += data_bytes(operand.ty)
        traffic["activations"] += data_bytes(binding.var.ty)
    return GraphCost(kernels, layout, layout + len(_strided(mod, name)), traffic)


def _function(mod: tvm.IRModule, name: str | None) -> str:
    names, found = public_functions(mod), name or default_function(mod)
    if found not in names:
        known = ", ".join(f"'{each}'" for each in names) or "none"
        raise UserError(f"The module's functions are {known}: name one of them, as function='NAME'.")
    return found


class KernelCounter:
    """Counter of a module's launches at any point of the pipeline; it examines each PrimFunc once."""

    def __init__(self):
        self._moves: dict[tirx.PrimFunc, bool] = {}

    def __call__(self, mod: tvm.IRModule) -> dict[str, int | None]:
        """Return ``operators`` not legalized yet, ``kernels``, and the ``layout_kernels`` among them.

        The last is None once a kernel is scheduled, as its computation can no longer be recognised.
        """
        called = []
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                for call in (b.value for block in func.body.blocks for b in block.bindings if hasattr(b, "value")):
                    if isinstance(call, ir.Call):
                        called.append(call.args[0] if call.op == CALL_TIR else call.op)
        operators = sum(isinstance(op, ir.Op) and op.has_attr("FLegalize") for op in called)
        funcs = [mod[op] for op in called if isinstance(op, ir.GlobalVar)]
        kernels = [func for func in funcs if isinstance(func, tirx.PrimFunc)]
        scheduled = any("tirx.is_scheduled" in (func.attrs or {}) for func in kernels)
        layout = None if scheduled else sum(map(self._only_moves, kernels))
        return {"operators": operators, "kernels": len(kernels), "layout_kernels": layout}

    def _only_moves(self, func: tirx.PrimFunc) -> bool:
        if func not in self._moves:
            self._moves[func] = only_moves_data(func)
        return self._moves[func]


def _strided(mod: tvm.IRModule, name: str = MAIN) -> list[Strided]:
    return [each for graph in graphs(mod) if graph.name == name for each in strided(graph)]


def only_moves_data(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc is a layout kernel: every output element is a copy of an input element."""
    try:
        kernel = parse(func)
        parts = [tidy(simplify(kernel))] if len(kernel.outputs) == 1 else split_outputs(kernel)
    except Opaque:
        return False
    return all(_moves(part) for part in parts)


def _moves(kernel: Kernel) -> bool:
    return movement(kernel) is not None


def operators(mod: tvm.IRModule) -> list[dict]:
    """Return DNNFusion's extended computational graph: the facts of each operator, as plain data for JSON.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after ``LegalizeOps``, before layout operators are eliminated and anything is fused.

    Returns
    -------
    list of dict
        ``operator`` and the fields of `analysis.facts.Facts`; operators without functional form have a ``reason``.
    """
    found = [each for graph in graphs(mod) for each in graph_facts(graph).items()]
    plumbing = (relax.Tuple, ir.TupleGetItem)
    return [_operator(n, facts) for n, facts in found if n.kernel is not None or not isinstance(n.value, plumbing)]


def _operator(node: Node, facts: Facts) -> dict:
    name = getattr(getattr(node.value, "op", None), "name", "") or type(node.value).__name__
    entry = {
        "operator": node.members[-1] if node.members else describe(name, node.var),
        "mapping_type": facts.mapping_type and facts.mapping_type.value,
        "quadrant": facts.quadrant and facts.quadrant.value,
        "ir_removable": facts.ir_removable,
        "properties": sorted(facts.properties),
        "reduction_dims": {name: list(dims) for name, dims in facts.reduction_dims},
        "bytes_of_result": facts.bytes_of_result,
        "flops": facts.flops,
    }
    return entry | ({"reason": node.reason} if node.kernel is None else {})


def explain(mod: tvm.IRModule, function: str = MAIN) -> dict:
    """Return the fate of each layout operator, and the operators of each kernel.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after the graph passes, with their decisions on it.
    function : str
        The function whose kernels are listed; the decisions are those on the whole module.

    Returns
    -------
    dict
        ``layout_operators``: ``operator``, ``map``, ``action`` (eliminated, kept), ``into`` (results of the kernels
        that read or write through the map) and ``reason`` of each. ``strided``: ``tensor``, ``shape``, ``memory``,
        ``readers`` (each with the dimensions that it runs along) and ``reason`` of each tensor whose stored order is
        not the one that a reader wants. ``kernels``: ``kernel``, ``number`` (of its launch, from 1), ``result``,
        ``members`` (operators computed) and ``views`` (layout operators read through) of each. ``decisions``: the whole
        log.
    """
    log = read_log(mod)
    kernels = _kernels(mod, function)
    layout = [_fate(entry, kernels) for entry in log if entry["pass"] == "EliminateLayout"]
    misplaced = [_strided_entry(each, log) for each in _strided(mod, function)]
    return {"layout_operators": layout, "strided": misplaced, "kernels": kernels, "decisions": log}


def _strided_entry(tensor: Strided, log: list[dict]) -> dict:
    of_layouts = [e for e in log if e["pass"] in ORDER_PASSES]
    reasons = [e.get("reason") for e in of_layouts if e.get("tensor") == tensor.tensor]
    chosen = next((reason for reason in reversed(reasons) if reason), None)
    return {
        "tensor": tensor.tensor,
        "shape": list(tensor.shape),
        "memory": tensor.memory,
        "readers": [{"reader": d.reader, "dims": sorted(d.dims)} for d in tensor.stored.unserved],
        "reason": tensor.fixed or chosen or "no pass chose an order: layouts are selected for targets with textures",
    }


def _kernels(mod: tvm.IRModule, function: str) -> list[dict]:
    main = mod[function]
    known = json.loads(main.attrs[MEMBERS]) if main.attrs and MEMBERS in main.attrs else {}
    found = []
    for binding in (b for block in main.body.blocks for b in block.bindings):
        call = getattr(binding, "value", None)
        if isinstance(call, ir.Call) and call.op == CALL_TIR:
            members, views = known.get(binding.var.name, ([], []))
            name = call.args[0].name_hint
            about = {"kernel": name, "number": len(found) + 1, "result": binding.var.name}
            found.append({**about, "members": members, "views": views})
    return found


def first_launches(mod: tvm.IRModule) -> dict[str, int]:
    """Return kernel name -> the number of its first launch in an inference, from 1: as ``explain --why`` takes it.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after the graph passes.
    """
    numbers: dict[str, int] = {}
    for each in _kernels(mod, MAIN):
        numbers.setdefault(each["kernel"], each["number"])
    return numbers


def _fate(entry: dict, kernels: list[dict]) -> dict:
    """Return the decision on one layout operator, completed by the actions of later passes."""
    operator, action, reason = entry["operator"], entry["action"], entry.get("reason", "")
    into = [each["result"] for each in kernels if operator in each["views"]]
    inside = [each["result"] for each in kernels if operator in each["members"] and each["members"] != [operator]]
    if action == "kept" and inside:
        action, reason, into = "eliminated", "computed where its neighbour is", into + inside
    return {"operator": operator, "map": entry["map"], "action": action, "into": into, "reason": reason}
