# SPDX-License-Identifier: Apache-2.0
"""MergeChains: long chains of small kernels become one launch, which loops over their steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tvm
from tvm import ir, relax, tirx

from ..analysis.chain import Device, Sketch, alone, cycles, sketch
from ..ir.chain import Chain, elements, write_chain
from ..ir.compose import fresh
from ..ir.graph import MOST_INPUTS, Graph, Node, graphs, kernel_name, write
from ..ir.kernel import Stage, shape_of, substitute
from ..ir.roll import roll, written_out
from ..ir.sizes import data_bytes, number_bytes

LEAST_DEPTH = 8
"""Kernels that wait for each other, from which on a chain is one."""
_MOST_STAGES = 512  # of a chain, before its steps are rolled up
_MOST_CODE = 160  # stages that are written out: compiling them takes seconds
_MOST_READ = 48  # pointers: those that a chain reads and writes
_HASHED = 1 << 20  # bytes of a constant up to which equal ones are found by what is in them


@tvm.transform.module_pass(opt_level=0, name="smartmem.MergeChains")
class MergeChains:
    """Let one launch do a long chain of small kernels, each of which waits for the one before, step after step.

    Before (a recurrence that was written out)::

        h1 = matmul_tanh(h0, w, x[0]);  h2 = matmul_tanh(h1, w, x[1]);  ...;  h32 = matmul_tanh(h31, w, x[31])

    After::

        h32 = chain(h0, w, x)      # for step in range(32): h = matmul_tanh(h, w, x[step])

    A kernel joins the chain before it if it takes less time there than in a launch of its own (`analysis.chain`): on
    one processor, or on as many as the chain has parts for that read nothing of each other. What repeats itself becomes
    a loop (`ir.roll`); kernels that are all different are done one after the other.

    Refuses (leaves the kernels as they are, with the reason) chains of fewer than `LEAST_DEPTH` kernels that wait for
    each other, what does not fit into the memory that a group of threads shares, and code that is too long.

    Parameters
    ----------
    device : Device, optional
        What launches and memory are like, by default a large GPU's with launches from a graph.
    """

    def __init__(self, device: Device | None = None):
        self.device = device or Device()

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        for graph in list(graphs(mod)):
            groups = [group for group in _groups(graph, self.device) if group.depth >= LEAST_DEPTH]
            if groups:
                mod = self._merge(mod, graph, groups)
        return mod

    def _merge(self, mod: tvm.IRModule, graph: Graph, groups: list[_Group]) -> tvm.IRModule:
        builder, log, merged = relax.BlockBuilder(mod), [], {}
        for group in groups:
            for part in _fitting(graph, group, self.device, log):
                merged[part] = part.call(builder)
                log.append(part.entry("merged", "each kernel takes less time here than its launch would"))
        if not merged:
            return mod
        return write(builder.get(), _rewritten(graph, merged), log)


# -- which kernels ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Group:
    """Kernels that are to become one, in order."""

    members: dict[Node, list[Sketch]] = field(default_factory=dict)
    deep: dict[Node, int] = field(default_factory=dict)
    cycles: float = 0.0

    @property
    def depth(self) -> int:
        """Members that wait for each other."""
        return max(self.deep.values(), default=0)

    def entry(self, action: str, reason: str) -> dict:
        """What `explain` shows."""
        names = [label for member in self.members for label in member.members]
        first = next(iter(self.members))
        entry = {"pass": "MergeChains", "operator": (first.members or [first.var.name])[0], "action": action}
        return {**entry, "kernels": len(self.members), "members": names, "reason": reason}


def _groups(graph: Graph, device: Device) -> list[_Group]:
    """Groups of small kernels, none of which waits for another kernel that waits for it."""
    sketches = {node: _sketches(node) for node in graph}
    small = {node: each for node, each in sketches.items() if each and _is_small(each, device)}
    found, left, inside = [], dict(small), {}
    for seed in small:
        if seed not in left:
            continue
        group = _grown(graph, seed, left, inside, device)
        for member in group.members:
            del left[member]
        if group.depth >= LEAST_DEPTH:
            found.append(group)
            inside |= dict.fromkeys(group.members, group)
    return found


def _sketches(node: Node) -> list[Sketch] | None:
    if node.kernel is None or node.attrs or len(node.kernel.outputs) != 1:
        return None
    buffers = (*node.kernel.inputs, *node.kernel.outputs, *node.kernel.intermediates)
    if any(buffer.scope() not in ("", "global") or 0 in shape_of(buffer) for buffer in buffers):
        return None
    found = [sketch(stage) for stage in node.kernel.stages]
    return None if any(each is None for each in found) else found


def _is_small(sketches: list[Sketch], device: Device) -> bool:
    """Whether a kernel may be worth more in a chain than alone: there it has one processor, or is cut in parts."""
    pointwise = all(each.terms <= 64 for each in sketches)
    return pointwise or cycles(sketches, {each.written for each in sketches}, device) < 2 * alone(sketches, device)


def _grown(graph: Graph, seed: Node, left: dict, inside: dict, device: Device) -> _Group:
    """What can go with a seed, in the order of the graph."""
    group, beside, started = _Group(), set(), False
    written: dict = {}
    for node in graph:
        started = started or node is seed
        if not started:
            continue
        producers = [graph.producer(operand) for operand in node.operands]
        waits = any(each in beside for each in producers)
        if (
            node in left
            and not waits
            and len(group.members) < _MOST_STAGES
            and _joins(group, node, left, written, device)
        ):
            behind = [group.deep[each] for each in producers if each in group.members]
            group.deep[node] = 1 + max(behind, default=0)
        elif waits or any(each in group.members for each in producers):
            # What is in another group waits for all that this group waits for.
            beside |= set(inside[node].members) if node in inside else {node}
    return group


def _joins(group: _Group, node: Node, left: dict, written: dict, device: Device) -> bool:
    """Add a node to a group if it takes less time there than alone."""
    mine = _connected(node, left[node], written)
    whole = [each for sketches in group.members.values() for each in sketches] + mine
    own = {each.written for each in whole}
    pointers = {_identity(arg) for member in (*group.members, node) for arg in member.args} - set(written)
    after = cycles(whole, own, device)
    if len(pointers) > _MOST_READ or (group.members and after - group.cycles >= alone(mine, device)):
        return False
    group.members[node], group.cycles = mine, after
    written[node.var] = mine[-1].written
    return True


def _connected(node: Node, sketches: list[Sketch], written: dict) -> list[Sketch]:
    """The sketches of a node with what other members write in the place of its inputs."""
    bound = dict(zip(node.kernel.inputs, node.args, strict=True))

    def source(buffer):
        arg = bound.get(buffer)
        return written.get(arg, buffer) if isinstance(arg, ir.Var) else buffer

    def load(each):
        return type(each)(source(each.buffer), each.along)

    return [
        Sketch(s.written, s.along, tuple(map(load, s.loads)), s.points, s.terms, s.bytes) for s in sketches
    ]  # fmt: skip


def _identity(arg) -> object:
    """Equal for arguments that are the same numbers."""
    if isinstance(arg, ir.Constant) and data_bytes(arg.value) <= _HASHED:
        value = arg.value.numpy()
        return value.shape, str(arg.value.dtype), value.tobytes()
    return arg


# -- one kernel ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Part(_Group):
    """A group whose kernel is written."""

    chain: Chain | None = None
    args: list = field(default_factory=list)
    results: list[Node] = field(default_factory=list)

    def call(self, builder: relax.BlockBuilder) -> relax.Expr:
        """The call of the kernel, which `builder` is given."""
        names = [label for member in self.members for label in member.members]
        gvar = builder.add_func(write_chain(self.chain), kernel_name(["chain", *names]))
        types = [node.var.ty for node in self.results]
        plain = [relax.TensorType(list(each.shape), each.dtype) for each in types]
        return relax.call_tir(gvar, relax.Tuple(self.args), plain if len(plain) > 1 else plain[0])


def _fitting(graph: Graph, group: _Group, device: Device, log: list[dict]) -> list[_Part]:
    """The group as one kernel, or as several where one would be too large."""
    part = _part(graph, group)
    why = _too_large(part, device)
    if not why:
        return [part]
    half = len(group.members) // 2
    halves = [_Group(), _Group()]
    for number, (member, sketches) in enumerate(group.members.items()):
        into = halves[number >= half]
        into.members[member] = sketches
        behind = [into.deep[p] for p in map(graph.producer, member.operands) if p in into.deep]
        into.deep[member] = 1 + max(behind, default=0)
    if half < LEAST_DEPTH:
        log.append(group.entry("kept", why))
        return []
    return [found for each in halves if each.depth >= LEAST_DEPTH for found in _fitting(graph, each, device, log)]


def _too_large(part: _Part, device: Device) -> str:
    shared = sum(elements(buffer) * number_bytes(str(buffer.dtype)) for buffer in part.chain.own)
    if shared > device.shared_bytes:
        return f"what its kernels give each other takes {shared} bytes, and threads share {device.shared_bytes}"
    if written_out(part.chain.items) > _MOST_CODE:
        return f"its kernels do not repeat themselves: {written_out(part.chain.items)} of them are too much code"
    if len(part.chain.inputs) + len(part.chain.outputs) > MOST_INPUTS:
        return f"it reads and writes more than {MOST_INPUTS} tensors"
    return ""


def _part(graph: Graph, group: _Group) -> _Part:
    inputs: dict = {}  # what is read, by its numbers -> the argument, and the buffer
    written: dict = {}  # variables of members -> their buffers
    stages: list[Stage] = []
    for member in group.members:
        kernel = fresh(member.kernel)
        named = {}
        for buffer, arg in zip(kernel.inputs, member.args, strict=True):
            known = written.get(arg) if isinstance(arg, ir.Var) else None
            named[buffer] = known if known is not None else inputs.setdefault(_identity(arg), (arg, buffer))[1]
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
    return _Part(group.members, group.deep, group.cycles, chain, [arg for arg, _ in inputs.values()], results)


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


def _is_read_outside(graph: Graph, group: _Group, member: Node) -> bool:
    readers = graph.readers(member.var)
    return graph.is_output(member.var) or any(reader not in group.members for reader in readers)


# -- the graph with it -----------------------------------------------------------------------------------------------


def _rewritten(graph: Graph, merged: dict[_Part, relax.Expr]) -> Graph:
    """The graph with calls in the place of members, in an order in which each node follows those that it reads."""
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
