# SPDX-License-Identifier: Apache-2.0
"""The graph of one dataflow block for rewriting: operators with shapes and dtypes, readers, and value numbers.

`AlgebraGraph` reads the bindings of a block and writes them back. Operators of the rewrite rules are nodes that may
change; any other binding is a node that only keeps its operands alive and is written back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from tvm import ir, relax

from ....ir.index_map import variables
from .numpy_operators import evaluate
from .terms import REDUCTIONS, Cost, Reduce, Refused, Term, TermFacts, operator_cost, result_facts

INPUT, OPAQUE, CONSTANT, ALIAS = "input", "opaque", "constant", "alias"
_PREFIX = "relax."
# Constants of up to so many elements are compared by value; all others by identity.
_COMPARED = 1 << 16
# The most nodes that are followed when a rewrite removes a node and the operands that only this node needs.
_CONE = 64


class AlgebraNode:
    """One value; nodes compare by object identity, and `number` is equal for values that are known to be equal."""

    __slots__ = ("args", "array", "attrs", "binding", "facts", "number", "op", "pinned", "readers", "source")

    def __init__(self, op: str, args: tuple, attrs: Any, facts: TermFacts, number: int):
        self.op, self.args, self.attrs, self.facts, self.number = op, args, attrs, facts, number
        self.readers: dict[AlgebraNode, None] = {}
        self.pinned = False  # visible outside of the block
        self.binding = None  # the original binding; None for a node that rewriting made or changed
        self.source: relax.Expr | None = None  # the expression that stands for this value
        self.array: np.ndarray | None = None  # numbers of a constant, once they were read

    @property
    def alive(self) -> bool:
        """Whether the node has a reader, or is visible outside of the block."""
        return bool(self.readers) or self.pinned


class AlgebraGraph:
    """Nodes of a dataflow block in order of execution."""

    def __init__(self, block: relax.DataflowBlock, vocabulary: frozenset[str]):
        self.vocabulary = vocabulary
        self.nodes: list[AlgebraNode] = []  # one per binding
        self._by_expr: dict = {}
        self._numbers: dict = {}
        for binding in block.bindings:
            self._read(binding)

    # Reading

    def _read(self, binding) -> None:
        value = getattr(binding, "value", None)
        described = _describe(value, self.vocabulary) if isinstance(binding, relax.VarBinding) else None
        facts = _facts(binding.var.ty)
        if described is not None and facts is not None and self._consistent(described, value, facts):
            op, attrs = described
            args = tuple(self._leaf(arg) for arg in value.args)
            node = AlgebraNode(op, args, attrs, facts, self._number(op, args, attrs))
        else:
            args = tuple(self._leaf(var) for var in variables(binding.value))
            node = AlgebraNode(OPAQUE, args, None, facts or TermFacts((), "object"), self._fresh())
        node.binding, node.source = binding, binding.var
        # A MatchCast binds sizes, which types refer to; those readers are not nodes of this graph.
        node.pinned = not isinstance(binding.var, relax.DataflowVar) or isinstance(binding, relax.MatchCast)
        for arg in args:
            arg.readers[node] = None
        self._by_expr[binding.var] = node
        self.nodes.append(node)

    def _consistent(self, described, value, facts: TermFacts) -> bool:
        """Whether the operator's type is the one that the terms give; if not, no rule applies to it."""
        op, attrs = described
        operands = [_facts(arg.ty) for arg in value.args]
        if None in operands:
            return False
        try:
            found = result_facts(op, operands, attrs)
        except Refused:
            return False
        return (found.shape, found.dtype) == (facts.shape, facts.dtype)

    def _leaf(self, expr) -> AlgebraNode:
        if isinstance(expr, ir.Constant):
            return self.constant(expr)
        node = self._by_expr.get(expr)
        if node is None:
            node = AlgebraNode(INPUT, (), None, _facts(expr.ty) or TermFacts((), "object"), self._fresh())
            node.pinned, node.source = True, expr
            self._by_expr[expr] = node
        return node

    def constant(self, value) -> AlgebraNode:
        """Return the node of a constant: a Relax constant, or a numpy array."""
        if isinstance(value, np.ndarray):
            array, expr = value, None
            facts = TermFacts(array.shape, str(array.dtype), True)
        else:
            facts = _facts(value.ty) or TermFacts((), "object")
            facts = TermFacts(facts.shape, facts.dtype, True)
            array, expr = None, value
        node = AlgebraNode(CONSTANT, (), None, facts, -1)
        node.pinned, node.source, node.array = True, expr, array
        if facts.size <= _COMPARED and facts.dtype != "object":
            node.number = self._unique((CONSTANT, facts, self.array(node).tobytes()))
        else:
            node.number = self._unique((CONSTANT, expr if expr is not None else id(array)))
        return node

    def array(self, node: AlgebraNode) -> np.ndarray:
        """Return the values of a constant."""
        if node.array is None:
            node.array = node.source.value.numpy()
        return node.array

    def filled_with(self, node: AlgebraNode, number: float) -> bool:
        """Whether a node is a constant tensor filled with `number`."""
        if node.op != CONSTANT or node.facts.size > _COMPARED or node.facts.dtype in ("object", "bool"):
            return False
        return node.facts.size > 0 and bool((self.array(node) == number).all())

    # Value numbers

    def _fresh(self) -> int:
        return self._unique(object())

    def _unique(self, key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _number(self, op: str, args: tuple, attrs: Any) -> int:
        return self._unique((op, attrs, tuple(arg.number for arg in args)))

    # Changing

    def build(self, term: Any, attrs: Any, dtype: str, made: dict) -> AlgebraNode:
        """Return the node of a term whose leaves are nodes and numbers; equal terms in `made` become one node."""
        if isinstance(term, AlgebraNode):
            return term
        if term in made:
            return made[term]
        if not isinstance(term, Term):
            return self.constant(np.asarray(term, dtype))
        args = tuple(self.build(arg, attrs, dtype, made) for arg in term.args)
        facts = result_facts(term.op, [arg.facts for arg in args], attrs)
        if facts.constant:
            node = self.constant(evaluate(term.op, [self.array(arg) for arg in args], attrs, dtype))
        else:
            node = AlgebraNode(term.op, args, attrs, facts, self._number(term.op, args, attrs))
            for arg in args:
                arg.readers[node] = None
        made[term] = node
        return node

    def replace(self, node: AlgebraNode, new: AlgebraNode) -> list[AlgebraNode]:
        """Let the variable of `node` stand for `new`; return the nodes that lost a reader and are still alive."""
        for arg in set(node.args):
            arg.readers.pop(node, None)
        touched = list(node.args)
        if not new.readers and not new.pinned and new.binding is None and new.source is None:
            # `new` was made for this place only: the node takes over its operator and keeps its own variable.
            for arg in set(new.args):
                arg.readers.pop(new, None)
                arg.readers[node] = None
            node.op, node.args, node.attrs, node.binding = new.op, new.args, new.attrs, None
        else:
            for reader in node.readers:
                if reader.op != OPAQUE:
                    reader.binding = None  # rebuilt: the old binding may come before the variable it would read
                reader.args = tuple(new if arg is node else arg for arg in reader.args)
                new.readers[reader] = None
            new.pinned = new.pinned or node.pinned
            node.readers, node.op, node.args, node.binding = {}, ALIAS, (new,), None
        return self._release(touched)

    def _release(self, nodes: Iterable[AlgebraNode]) -> list[AlgebraNode]:
        """Remove nodes without readers, and their operands in turn."""
        stack, alive = list(nodes), []
        while stack:
            node = stack.pop()
            if node.alive or node.op in (INPUT, CONSTANT, ALIAS):
                alive.append(node)
                continue
            for arg in set(node.args):
                if arg.readers.pop(node, 0) is None:
                    stack.append(arg)
        return alive

    # Asking

    def cost(self, node: AlgebraNode) -> Cost:
        """Return the cost of the operator of one node."""
        return operator_cost(node.op, [arg.facts for arg in node.args], node.facts)

    def find(self, op: str, args: tuple, attrs: Any) -> AlgebraNode | None:
        """Return the node that already applies an operator to these nodes, or None."""
        few = min((arg for arg in args), key=lambda arg: len(arg.readers))
        for reader in islice(few.readers, _CONE):
            if reader.op == op and reader.args == args and reader.attrs in (None, attrs):
                return reader
        return None

    def operator(self, node: AlgebraNode) -> str:
        """Return the name of a node's Relax operator, in the rules or not; empty if it is no operator."""
        value = node.binding.value if node.op == OPAQUE else None
        if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            return value.op.name.removeprefix(_PREFIX)
        return node.op if node.op in self.vocabulary else ""

    def dying(self, root: AlgebraNode, kept: set[AlgebraNode]) -> list[AlgebraNode]:
        """Return the nodes without readers once `root` is computed another way, `root` first; `kept` stay in use."""
        gone, stack = {root: None}, list(root.args)
        while stack and len(gone) < _CONE:
            node = stack.pop()
            if node.op not in self.vocabulary or node.pinned or node in kept or node in gone:
                continue
            if all(reader in gone for reader in node.readers):
                gone[node] = None
                stack.extend(node.args)
        return list(gone)

    # Writing

    def write(self, operators: dict) -> list[relax.Binding]:
        """Return the bindings of the block as it is now; `operators`: name -> (operands, attributes) -> call."""
        builder = relax.BlockBuilder()
        done: set[AlgebraNode] = set()
        bindings: list[relax.Binding] = []
        for node in self.nodes:
            if node.alive or node.op == ALIAS:
                self._write(node, operators, builder, done, bindings)
        return bindings

    def _write(self, node: AlgebraNode, operators: dict, builder, done: set, bindings: list) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [arg for arg in top.args if arg not in done and arg.op not in (INPUT, CONSTANT)]
            if top not in done and missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                bindings.append(self._binding(top, operators, builder))

    def _binding(self, node: AlgebraNode, operators: dict, builder) -> relax.Binding:
        if node.binding is not None:
            return node.binding
        args = [self.expression(arg) for arg in node.args]
        value = builder.normalize(operators[node.op](args, node.attrs)) if node.op != ALIAS else args[0]
        if node.source is None:
            node.source = relax.DataflowVar(node.op.rpartition(".")[2], value.ty)
        return relax.VarBinding(node.source, value)

    def expression(self, node: AlgebraNode) -> relax.Expr:
        """Return the expression that stands for a node in the module."""
        if node.source is None and node.op == CONSTANT:
            node.source = relax.const(node.array, node.facts.dtype)
        return node.source


def _describe(value, vocabulary: frozenset[str]) -> tuple[str, Any] | None:
    """Return operator and attributes of a call, if the rules have the operator."""
    if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
        return None
    op = value.op.name.removeprefix(_PREFIX)
    if op not in vocabulary or not all(map(_is_finite, value.args)):
        return None
    if op in REDUCTIONS:
        facts = _facts(value.args[0].ty)
        if facts is None:
            return None
        ndim, axes = len(facts.shape), value.attrs.axis
        axes = tuple(range(ndim)) if axes is None else tuple(sorted(int(axis) % ndim for axis in axes))
        return op, Reduce(facts.shape, axes, bool(value.attrs.keepdims))
    return op, None


def _is_finite(expr: relax.Expr) -> bool:
    """Whether an expression's constants are finite: the laws do not hold for infinity and NaN, as in ``inf - inf``."""
    if not isinstance(expr, ir.Constant):
        return True
    array = expr.value.numpy()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _facts(ty) -> TermFacts | None:
    """Return the facts of a tensor with a static shape."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None or ty.dtype is None:
        return None
    try:
        return TermFacts(tuple(int(dim) for dim in ty.shape), str(ty.dtype.dtype))
    except (TypeError, ValueError):
        return None
