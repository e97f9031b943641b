# SPDX-License-Identifier: Apache-2.0
"""A graph as plain data, for `smartmem report` and `smartmem export-graph`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import tvm
from tvm import ir, relax

from ..ir.graph import CALL_TIR
from ..ir.index_map import variables
from ..ir.public_functions import MAIN
from ..ir.sizes import number_bytes
from ..ir.walk import collect


def record_graph(mod: tvm.IRModule, function: str = MAIN) -> dict:
    """Return the nodes of a function, in the order of execution, and the tensors between them.

    Parameters
    ----------
    mod : tvm.IRModule
        Module of operators or of kernels: an imported model, or one after any of the graph passes.

    Returns
    -------
    dict
        ``inputs``: ``name``, ``shape``, ``dtype`` and ``memory`` of each tensor that the caller passes. ``nodes``:
        ``name`` (that of its variable), ``operator`` (for a kernel, the name of its PrimFunc), ``inputs`` (distinct
        names of tensors that are no weights), ``outputs`` (in the form of the graph's ``inputs``), ``weights``
        (without names). The outputs of a node with several are called ``name.0``, ``name.1``, ... ``outputs``: names
        of tensors.
    """
    main = mod[function]
    count = int((main.attrs or {}).get("num_input", len(main.params)))
    reader = _Reader({var: _tensors(var.name, var.ty) for var in main.params[:count]}, set(main.params[count:]))
    inputs = [each for found in reader.known.values() for each in found]
    nodes = [node for block in main.body.blocks for b in block.bindings for node in reader.read(b)]
    return {"inputs": inputs, "nodes": nodes, "outputs": reader.names(main.body.body)}


class _Reader:
    """Follows tensors through tuples, items of tuples and aliases, which are no operators.

    Parameters
    ----------
    known : dict
        Variable -> the tensors that it stands for.
    weights : set
        Variables of weights.
    """

    def __init__(self, known: dict, weights: set):
        self.known, self.weights = known, weights

    def read(self, binding: relax.Binding) -> Iterator[dict]:
        """Yield the node of a binding, if it computes something."""
        var, value = binding.var, getattr(binding, "value", None)
        if isinstance(value, (ir.Var, relax.Tuple, ir.TupleGetItem)):
            self.known[var] = self._stands_for(value)
            return
        operands = self._operands(value)
        self.known[var] = _tensors(var.name, var.ty)
        yield {
            "name": var.name,
            "operator": _operator(value),
            "inputs": list(dict.fromkeys(each["name"] for o in operands for each in self.known.get(o, ()))),
            "outputs": self.known[var],
            "weights": [_facts(o.ty) for o in operands if isinstance(o, ir.Constant) or o in self.weights],
        }

    def names(self, value: relax.Expr) -> list[str]:
        """Return the names of the tensors that an expression stands for."""
        return [each["name"] for each in self._stands_for(value)]

    def _stands_for(self, value: relax.Expr) -> list[dict]:
        if isinstance(value, relax.Tuple):
            return [each for field in value.fields for each in self._stands_for(field)]
        if isinstance(value, ir.TupleGetItem):
            whole, fields = self._stands_for(value.tuple_value), value.tuple_value.ty.fields
            first = sum(len(_tensors("", each)) for each in fields[: value.index])
            return whole[first : first + len(_tensors("", fields[value.index]))]
        return self.known.get(value, [])

    def _operands(self, value: relax.Expr) -> list[relax.Expr]:
        """Return the distinct variables that an expression reads, followed by its constants."""
        constants = collect(value, ir.Constant)
        return [*variables(value), *(each for each in constants if isinstance(each.ty, relax.TensorType))]


def _operator(value: relax.Expr) -> str:
    if not isinstance(value, ir.Call):
        return type(value).__name__.lower()
    if value.op == CALL_TIR:
        return value.args[0].name_hint
    name = getattr(value.op, "name", None) or getattr(value.op, "name_hint", "call")
    first = value.args[0] if value.args else None
    # For the call of a packed function, the name of that function says more.
    return first.global_symbol if isinstance(first, relax.ExternFunc) else name.removeprefix("relax.")


def _tensors(name: str, ty: ir.Type) -> list[dict]:
    if isinstance(ty, relax.TupleType):
        return [each for i, field in enumerate(ty.fields) for each in _tensors(f"{name}.{i}", field)]
    return [{"name": name, **_facts(ty)}]


def _facts(ty: ir.Type) -> dict:
    shape = [int(dim) for dim in getattr(ty, "shape", None) or ()]
    dtype = str(getattr(ty, "dtype", "") or "")
    scope = getattr(getattr(ty, "vdevice", None), "memory_scope", "") or ""
    return {
        "shape": shape,
        "dtype": dtype,
        "memory": "texture" if "texture" in scope else "buffer",
        "bytes": prod(shape) * (number_bytes(dtype) if dtype else 0),
    }
