# SPDX-License-Identifier: Apache-2.0
"""MergeChains: long chains of small kernels become one launch, which loops over their steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tvm
from tvm import ir, relax, tirx

from ...analysis.chain_cost import LARGE, SLACK, plan_of, sketch
from ...analysis.chain_groups import Group, Search, identity, launches
from ...ir.chain import Chain, write_chain
from ...ir.compose import fresh
from ...ir.graph import Graph, Node, graphs, kernel_name, write
from ...ir.kernel import Stage, shape_of, substitute
from ...ir.roll import roll
from ...tables.fusion_policy import FORBIDDEN, LEAST_CHAIN_KERNELS, MOST_INPUTS, MOST_WRITTEN_OUT, may_fuse
from ...target import Limits


@tvm.transform.module_pass(opt_level=0, name="smartmem.MergeChains")
class MergeChains:
    """Let one launch do a long chain of small kernels, each of which waits for the one before, step after step.

    Before (an unrolled recurrence)::

        h1 = matmul_tanh(h0, w, x[0]);  h2 = matmul_tanh(h1, w, x[1]);  ...;  h32 = matmul_tanh(h31, w, x[31])

    After::

        h32 = chain(h0, w, x)      # for step in range(32): h = matmul_tanh(h, w, x[step])

    A kernel joins the chain before it if it takes less time there than in a launch of its own
    (`analysis.chain_cost`). The chain runs on one multiprocessor, or on one for each of its independent parts.
    Repeated kernels become a loop (`ir.roll`); kernels that all differ run one after the other.

    Refuses (leaves the kernels as they are, with the reason) chains of fewer than `LEAST_CHAIN_KERNELS` kernels that
    wait for each other, chains whose tensors do not fit into the shared memory of a thread block, and code that is too
    long.

    Parameters
    ----------
    device : Limits, optional
        Costs of launches and of memory, by default those of a large GPU with launches from a graph.
    """

    def __init__(self, device: Limits | None = None):
        self.device = device or LARGE

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        for graph in list(graphs(mod)):
            groups = Search(graph, self.device).groups()
            if groups:
                mod = self._merge(mod, graph, groups)
        return mod

    def _merge(self, mod: tvm.IRModule, graph: Graph, groups: list[Group]) -> tvm.IRModule:
        builder, log, merged = relax.BlockBuilder(mod), [], {}
        if not may_fuse("chains"):
            log += [group.entry("kept", FORBIDDEN) for group in groups]
            return write(mod, graph, log)
        for group in groups:
            for part in _fitting(graph, group, self.device, log):
                merged[part] = part.call(builder)
                log.append(part.entry("merged", "each kernel takes less time here than its launch would"))
        if not merged:
            return mod
        return write(builder.get(), _rewritten(graph, merged), log)


# -- one kernel ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Part(Group):
    """A group together with its merged kernel."""

    chain: Chain | None = None
    args: list = field(default_factory=list)
    results: list[Node] = field(default_factory=list)

    def call(self, builder: relax.BlockBuilder) -> relax.Expr:
        """Add the kernel to `builder` and return its call."""
        names = [label for member in self.members for label in member.members]
        gvar = builder.add_func(write_chain(self.chain), kernel_name(["chain", *names]))
        types = [node.var.ty for node in self.results]
        plain = [relax.TensorType(list(each.shape), each.dtype) for each in types]
        return relax.call_tir(gvar, relax.Tuple(self.args), plain if len(plain) > 1 else plain[0])


def _fitting(graph: Graph, group: Group, device: Limits, log: list[dict]) -> list[_Part]:
    """Return the group as one kernel, or as several where one would be too large."""
    part = _part(graph, group)
    why = _too_large(part, device)
    if not why:
        return [part]
    half = len(group.members) // 2
    halves = [Group(), Group()]
    for number, (member, sketches) in enumerate(group.members.items()):
        into = halves[number >= half]
        into.members[member] = sketches
        into.wait(member, launches(sketches), map(graph.producer, member.operands))
    if half == 0 or (half < LEAST_CHAIN_KERNELS and group.depth < 2 * LEAST_CHAIN_KERNELS):
        log.append(group.entry("kept", why))
        return []
    return [
        found for each in halves if each.depth >= LEAST_CHAIN_KERNELS for found in _fitting(graph, each, device, log)
    ]


def _too_large(part: _Part, device: Limits) -> str:
    shared = plan_of([sketch(stage) for stage in part.chain.stages], part.chain.own, device).shared_bytes
    if shared > device.shared_bytes - SLACK:
        return f"what its kernels give each other takes {shared} bytes, and threads share {device.shared_bytes}"
    if len(part.chain.stages) > MOST_WRITTEN_OUT:
        return f"its kernels do not repeat themselves: {len(part.chain.stages)} of them are too much code"
    if len(part.chain.inputs) + len(part.chain.outputs) > MOST_INPUTS:
        return f"it reads and writes more than {MOST_INPUTS} tensors"
    return ""


def _part(graph: Graph, group: Group) -> _Part:
    inputs: dict = {}  # key of a tensor that the group reads -> the argument, and the buffer
    written: dict = {}  # variables of members -> their buffers
    stages: list[Stage] = []
    for member in group.members:
        kernel = fresh(member.kernel)
        named = {}
        for buffer, arg in zip(kernel.inputs, member.args, strict=True):
            known = written.get(arg) if isinstance(arg, ir.Var) else None
            named[buffer] = known if known is not None else inputs.setdefault(identity(arg), (arg, buffer))[1]
        stages += [_reading(stage, named) for stage in kernel.stages]
        written[member.var] = kernel.outputs[0]
    results = [member for member in group.members if _is_read_outside(graph, group, member)]
    outputs, copies = [], []
    read = {load.source for stage in stages for load in stage.loads}
    for result in results:
        buffer = written[result.var]
        if buffer in read:
            outputs.append(tirx.decl_buffer(list(buffer.shape), str(buffer.dtype), buffer.name, layout=None))
            copies.append(_copy(buffer, outputs[-1]))
        else:
            outputs.append(buffer)
    items = tuple(roll([*stages, *copies], outputs))
    chain = Chain(tuple(buffer for _, buffer in inputs.values()), tuple(outputs), items)
    return _Part(**vars(group), chain=chain, args=[arg for arg, _ in inputs.values()], results=results)


def _reading(stage: Stage, named: dict) -> Stage:
    init = None if stage.init is None else substitute(stage.init, named)
    return replace(stage, body=substitute(stage.body, named), init=init)


def _copy(source, target) -> Stage:
    iters = [
        tirx.IterVar(ir.Range(0, tirx.const(extent, "int64")), tirx.Var(f"v{n}", "int64"), 0)
        for n, extent in enumerate(shape_of(source))
    ]
    at = [it.var for it in iters]
    return Stage("result", tuple(iters), tirx.BufferStore(target, tirx.BufferLoad(source, at), at))


def _is_read_outside(graph: Graph, group: Group, member: Node) -> bool:
    readers = graph.readers(member.var)
    return graph.is_output(member.var) or any(reader not in group.members for reader in readers)


# -- the graph with it -----------------------------------------------------------------------------------------------


def _rewritten(graph: Graph, merged: dict[_Part, relax.Expr]) -> Graph:
    """Return the graph with calls in the place of members, each node after those that it reads."""
    part_of = {member: part for part in merged for member in part.members}
    news: dict[_Part, list[Node]] = {part: _nodes(part, call) for part, call in merged.items()}
    order, done = [], set()

    def place(first: Node) -> None:
        waiting = [(first, False)]
        while waiting:
            node, ready = waiting.pop()
            unit = part_of.get(node, node)
            if unit in done:
                continue
            members = list(unit.members) if isinstance(unit, _Part) else [unit]
            needed = [p for m in members for p in map(graph.producer, m.operands) if p is not None]
            if ready:
                done.add(unit)
                order.extend(news[unit] if isinstance(unit, _Part) else [unit])
            else:
                waiting.append((node, True))
                waiting += [(p, False) for p in needed if part_of.get(p, p) is not unit]

    for node in graph:
        place(node)
    return Graph(graph.name, graph.function, order)


def _nodes(part: _Part, call: relax.Expr) -> list[Node]:
    members = list(dict.fromkeys(label for member in part.members for label in member.members))
    views = list(dict.fromkeys(label for member in part.members for label in member.views))
    if len(part.results) == 1:
        return [Node(part.results[0].var, call, reason="a chain", members=members, views=views)]
    whole = relax.DataflowVar("chain", relax.TupleType([result.var.ty for result in part.results]))
    normalize = relax.BlockBuilder().normalize
    taken = [
        Node(result.var, normalize(relax.TupleGetItem(whole, number)), reason="a chain")
        for number, result in enumerate(part.results)
    ]
    return [Node(whole, call, reason="a chain", members=members, views=views), *taken]
