# SPDX-License-Identifier: Apache-2.0
"""SkipPositions: kernels of a model with an open length leave out what nothing reads behind the length."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tvm
from tvm import ir, relax, sym, tirx

from ...analysis.classify import reduces
from ...analysis.ending_keys import ending_keys
from ...analysis.unread_positions import ANYTHING, ZEROS, Axes, UnreadPositions
from ...analysis.zeros_behind import zeros_behind
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.kernel import KEYS_END, POSITIONS, Kernel, shape_of
from ...ir.mask_positions import LENGTH, ZERO, Extent
from ...ir.several_sizes import TILE, extent_at, places_of, tile_of


@tvm.transform.module_pass(opt_level=0, name="smartmem.SkipPositions")
class SkipPositions:
    """Let kernels leave out the positions behind the length that nothing reads, or only as zeros.

    Before::

        h = norm(x)                                  # 128 rows; the length is 37
        p = matmul_add(h, weights)

    After::

        h = norm(x, length)
        p = matmul_add(h, weights, length)           # the loops over rows end behind row 37

    The pass begins at the results, which `deploy.tiles` cuts, and goes backwards through the loops of all kernels: it
    finds the positions that nothing reads (`analysis.unread_positions`). Each kernel with such positions gets the
    length as an input and an attribute (`ir.kernel.POSITIONS`), which rules follow (`schedule.core.positions`). Where
    sums multiply the positions with zero, the kernel ends with a loop that writes zeros there.

    On GPUs no kernel writes such zeros: there it leaves out nothing, and what it reads is computed.

    Refused are tensors that something reads in another way, and functions without a length.

    Parameters
    ----------
    zeros : bool
        Whether kernels can write zeros behind the length.
    """

    def __init__(self, zeros: bool = True):
        self.zeros = zeros

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        takes = any(isinstance(func, relax.Function) and _length(func) is not None for func in mod.functions.values())
        return rewrite_graphs(mod, lambda graph: _Skips(graph, self.zeros).run()) if takes else mod


def _length(func: relax.Function):
    """Return the parameter with the length; None if there is none, or it cannot be less than the capacity."""
    attrs = func.attrs or {}
    if TILE not in attrs or "input_names" not in attrs:
        return None
    names = list(map(str, attrs["input_names"]))
    return func.params[names.index(LENGTH)] if LENGTH in names else None


@dataclass
class _Skips:
    graph: Graph
    writes_zeros: bool = True
    unread: dict = field(default_factory=dict)  # variable -> axes
    zeros: dict = field(default_factory=dict)  # variable -> axes along which its kernel writes zeros
    computed: dict = field(default_factory=dict)  # variable -> axes that are zero or lowest behind the length
    log: list[dict] = field(default_factory=list)

    def run(self) -> list[dict]:
        func = self.graph.function
        self.length = _length(func)
        if self.length is None:
            return []
        facts = tile_of(func)
        self.capacity, self.numbers = facts["items"], [Extent(*each) for each in facts.get("numbers", [Extent()])]
        if self.capacity == 1:
            return []
        nodes = list(self.graph)
        kernels = self.kernels = self._kernels(nodes)
        self._results(facts)
        for node in reversed(nodes):
            self._read(node, kernels.get(node.var))
        # Before kernels change, as each asks those that read its result.
        marked = [(node, *self._ends(node)) for node in nodes if node.var in kernels and self.unread.get(node.var)]
        for node, axis, zeros in marked:
            self._mark(node, axis, zeros)
        return self.log

    def _kernels(self, nodes: list[Node]) -> dict:
        computed, found = self.computed, {}
        for node in nodes:
            if node.kernel is None or len(node.kernel.outputs) != 1:
                continue
            bound = dict(zip(node.kernel.inputs, node.args, strict=True))
            length = next((buffer for buffer, arg in bound.items() if arg.same_as(self.length)), None)
            kernel = UnreadPositions(node.kernel, length, self.capacity, self.numbers)
            given = {buffer: computed.get(arg, {}) for buffer, arg in bound.items() if isinstance(arg, ir.Var)}
            computed[node.var] = kernel.computed(given)
            states = computed[node.var].items()
            self.zeros[node.var] = {axis: (ZEROS, extent) for axis, (state, extent) in states if state == ZERO}
            found[node.var] = kernel
        return found

    def _results(self, facts: dict) -> None:
        body = self.graph.function.body.body
        results = list(body.fields) if isinstance(body, ir.Tuple) else [body]
        for var, share in zip(results, facts["outputs"]):
            self._meet(var, {each["axis"]: (ANYTHING, extent_at(each)) for each in places_of(share)})

    def _meet(self, var, axes: Axes) -> None:
        """Note what one reader leaves unread of a tensor."""
        if var not in self.unread:
            self.unread[var] = axes
            return
        known = self.unread[var]
        self.unread[var] = {
            axis: (ZEROS if ZEROS in (known[axis][0], word) else ANYTHING, extent)
            for axis, (word, extent) in axes.items()
            if axis in known and known[axis][1] == extent
        }

    def _read(self, node: Node, kernel: UnreadPositions | None) -> None:
        if kernel is None:
            for operand in node.operands:
                self._meet(operand, {})
            return
        unread = self.unread.get(node.var, {})
        if reduces(kernel.kernel):  # zeros that it computes anyway, whatever reads them, as windows do
            unread = {**self.zeros.get(node.var, {}), **unread}
        self.unread[node.var] = self._left_out(unread)
        found = kernel.unread(self.unread[node.var])
        for buffer, arg in zip(kernel.kernel.inputs, node.args, strict=True):
            if isinstance(arg, ir.Var):
                self._meet(arg, found.get(buffer, {}))

    def _left_out(self, axes: Axes) -> Axes:
        """Return the axes that a kernel may leave out; it writes zeros along one axis at most."""
        zeros = [axis for axis, (word, _) in axes.items() if word == ZEROS][: int(self.writes_zeros)]
        return {axis: each for axis, each in axes.items() if each[0] == ANYTHING or axis in zeros}

    def _ends(self, node: Node) -> tuple[int, int]:
        """Return the axis along which a kernel may end early, and how many elements behind the length are zeros."""
        axes = self.unread[node.var]
        zeros = [axis for axis, (word, _) in axes.items() if word == ZEROS]
        axis = min(zeros or axes)
        if not zeros:
            return axis, 0
        size = shape_of(node.kernel.outputs[0])[axis]
        readers = [
            (self.kernels[each.var].kernel, buffer, self.unread.get(each.var, {}))
            for each in self.graph.readers(node.var)
            if each.var in self.kernels
            for buffer, arg in zip(self.kernels[each.var].kernel.inputs, each.args, strict=True)
            if arg.same_as(node.var)
        ]
        every = all(each.var in self.kernels for each in self.graph.readers(node.var))
        found = zeros_behind(readers, axis, axes[axis][1], self.capacity) if every else None
        return axis, size if found is None else min(found, size)

    def _mark(self, node: Node, axis: int, zeros: int) -> None:
        """Give a kernel the length, and the axis along which it may end early."""
        if not any(arg.same_as(self.length) for arg in node.args):
            buffer = tirx.decl_buffer([tirx.const(1, "int64")], "int64", "length")
            self.graph.take(node, self._with_length(node, buffer))
        node.kernel = self._without_mask(node, axis)
        place = next(number for number, arg in enumerate(node.args) if arg.same_as(self.length))
        node.attrs = {**node.attrs, POSITIONS: [place, axis, zeros, *self.unread[node.var][axis][1]]}
        bound = dict(zip(node.kernel.inputs, node.args, strict=True))
        given = {buffer: self.computed.get(arg, {}) for buffer, arg in bound.items() if isinstance(arg, ir.Var)}
        keys = ending_keys(node.kernel, node.kernel.inputs[place], self.capacity, given)
        if keys is not None:
            node.attrs[KEYS_END] = [keys[0], *keys[1]]
        why = "nothing reads the positions behind the length" + (", but as zeros" if zeros else "")
        decision = {"pass": "SkipPositions", "operator": node.members[-1], "action": "shortened"}
        self.log.append({**decision, "into": [node.var.name], "reason": why})

    def _without_mask(self, node: Node, axis: int) -> Kernel:
        """Return the kernel without the zeros behind the length that it stores last, which its last loop writes."""
        last, (_, extent) = node.kernel.last, self.unread[node.var][axis]
        value, at = last.body.value, last.body.indices[axis]
        masks = isinstance(value, tirx.Select) and isinstance(value.condition, tirx.LT | tirx.LE) and not last.reduction
        if not masks or not self.kernels[node.var].hides(value.condition, at, extent, sym.Analyzer()):
            return node.kernel
        stage = replace(last, body=tirx.BufferStore(last.body.buffer, value.true_value, last.body.indices))
        return replace(node.kernel, stages=(*node.kernel.stages[:-1], stage))

    def _with_length(self, node: Node, buffer) -> Node:
        kernel = replace(node.kernel, inputs=(*node.kernel.inputs, buffer))
        return Node(node.var, node.value, [*node.args, self.length], kernel, members=node.members, views=node.views)
