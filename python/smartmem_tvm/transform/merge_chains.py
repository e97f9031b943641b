# SPDX-License-Identifier: Apache-2.0
"""MergeChains: long chains of small kernels become one launch, which loops over their steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import tvm
from tvm import ir, relax, tirx

from ..analysis.chain import LANES, SLACK, Axes, Device, Load, Sketch, alone, cycles, groups_of, plan_of, sketch
from ..ir.chain import Chain, write_chain
from ..ir.compose import fresh
from ..ir.graph import MOST_INPUTS, Graph, Node, graphs, kernel_name, write
from ..ir.kernel import Stage, shape_of, substitute
from ..ir.roll import roll, written_out
from ..ir.sizes import data_bytes

LEAST_DEPTH = 8
"""Kernels that wait for each other, from which on a chain is one."""
_MOST_OF_ONE = 160  # stages of a kernel that a chain takes
_OF_A_ROW = 4  # sums after one another in a kernel that one launch does: norms have two or three
_MOST_POINTS = 1 << 20  # elements of its result
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
            groups = _Search(graph, self.device).groups()
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
    axes: Axes = field(default_factory=Axes)
    cycles: float = 0.0
    read: set = field(default_factory=set)  # what its kernels are given, by `_identity`

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


class _Search:
    """Groups of small kernels, none of which waits for another kernel that waits for it."""

    def __init__(self, graph: Graph, device: Device):
        self.graph, self.device = graph, device
        self.order = list(graph)
        self.place = {node: number for number, node in enumerate(self.order)}
        self.producers = {node: [p for p in map(graph.producer, node.operands) if p] for node in self.order}
        sketches = {node: _sketches(node) for node in self.order}
        self.small = {node: each for node, each in sketches.items() if each and self._is_small(each)}
        self.launches = {node: _launches(each) for node, each in self.small.items()}
        self.identity = {arg: _identity(arg) for node in self.small for arg in node.args}
        self.inside: dict[Node, _Group] = {}
        self.found: list[_Group] = []

    def groups(self) -> list[_Group]:
        """Those whose parts need nothing of each other first, as more processors work on them."""
        for least in (LANES, 1):
            free = {node: None for node in self.order if node in self.small and node not in self.inside}
            for seed in self._deep_enough(free):
                if seed not in free:
                    continue
                group = self._grown(seed, free, least)
                if group.depth >= LEAST_DEPTH:
                    self.found.append(group)
                    self.inside |= dict.fromkeys(group.members, group)
                    for member in group.members:
                        del free[member]
        return self.found

    def _deep_enough(self, free: dict) -> list[Node]:
        """Kernels from which a path of enough free ones goes on."""
        behind: dict = {}
        for node in reversed(free):
            readers = (behind[r] for r in self.graph.readers(node.var) if r in behind)
            behind[node] = self.launches[node] + max(readers, default=0)
        return [node for node in free if behind[node] >= LEAST_DEPTH]

    def _is_small(self, sketches: list[Sketch]) -> bool:
        """Whether a kernel may be worth more in a chain than alone: there it has one processor, or is cut in parts."""
        groups = groups_of(Axes().having(sketches).parts, self.device)
        return cycles(sketches, groups) < 2 * alone(sketches, _launches(sketches), self.device)

    def _grown(self, seed: Node, free: dict, least: int) -> _Group:
        """What can go with a seed, in the order of the graph; what the group does not wait for comes with a reader."""
        group, beside = _Group(), set()
        early: dict[Node, list[Node]] = {}  # free kernels that wait for no member -> those like that which they read
        for node in self.order[self.place[seed] :]:
            producers = self.producers[node]
            waits = any(each in beside for each in producers)
            behind = any(each in group.members for each in producers)
            mine = node in free and not waits and (behind or node is seed)
            joined = self._taken(group, seed, _all_of(early, producers), node, least) if mine else None
            if joined is not None:
                beside = joined or beside
                for member in group.members:
                    early.pop(member, None)
            elif waits or behind:
                beside.add(node)
                beside |= set(self.inside[node].members) if node in self.inside else set()
            elif node in free:
                early[node] = [each for each in producers if each in early]
        return group

    def _taken(self, group: _Group, seed: Node, first: list[Node], node: Node, least: int) -> set[Node] | None:
        """Add a node to a group, if that may be with `first`; then what waits for the group if that is news."""
        for nodes in ([*first, node], [node]) if first else ([node],):
            beside: set[Node] | None = set()
            if len(nodes) > 1 or self.inside:
                beside = self._beside(seed, node, {*group.members, *nodes})
            if beside is not None and self._joins(group, nodes, least):
                return beside
        return None

    def _beside(self, seed: Node, last: Node, members: set[Node]) -> set[Node] | None:
        """What waits for `members` from a seed to a node, and is none; None if a member waits for that."""
        between = self.order[self.place[seed] : self.place[last] + 1]
        beside: set[Node] = set()
        grown = True
        while grown:  # what another group makes early waits for what it does late
            grown = False
            for node in between:
                if any(each in beside for each in self.producers[node]):
                    if node in members:
                        return None
                elif not any(each in members for each in self.producers[node]):
                    continue
                if node not in members and node not in beside:
                    beside |= {node, *(self.inside[node].members if node in self.inside else ())}
                    grown = node in self.inside or grown
        return beside

    def _joins(self, group: _Group, nodes: list[Node], least: int) -> bool:
        """Add nodes to a group if they take less time there than alone."""
        new = _Group(dict(group.members), dict(group.deep), group.axes, 0.0, set(group.read))
        sketches: list[Sketch] = []
        for node in nodes:
            sketches += _connected(node, self.small[node], new.members)
            new.read |= {self.identity[arg] for arg in node.args if self.graph.producer(arg) not in new.members}
            new.deep[node] = self.launches[node] + max(
                (new.deep[p] for p in self.producers[node] if p in new.deep), default=0
            )
            new.members[node] = self.small[node]
        new.axes = group.axes.having(sketches)
        if new.axes.parts < least or len(new.read) > _MOST_READ or len(new.members) > _MOST_STAGES:
            return False
        groups = groups_of(new.axes.parts, self.device)
        same = groups == groups_of(group.axes.parts, self.device)
        rest = group.cycles if same else sum(cycles(each, groups) for each in group.members.values())
        new.cycles = rest + cycles(sketches, groups)
        apart = sum(alone(self.small[node], self.launches[node], self.device) for node in nodes)
        if group.members and new.cycles - group.cycles >= apart:
            return False
        vars(group).update(vars(new))
        return True


def _all_of(early: dict[Node, list[Node]], nodes: list[Node]) -> list[Node]:
    """Those of `nodes` that are in `early`, each behind what it reads."""
    found: dict[Node, None] = {}
    for node in nodes:
        if node in early and node not in found:
            found |= dict.fromkeys(_all_of(early, early[node]))
            found[node] = None
    return list(found)


def _launches(sketches: list[Sketch]) -> int:
    """Launches that a kernel takes by itself: one, or one for each of many sums that wait for each other."""
    deep: dict = {}
    for each in sketches:
        before = max((deep.get(load.buffer, 0) for load in each.loads), default=0)
        deep[each.written] = before + (each.terms > 1)
    most = max(deep.values())
    return most if most > _OF_A_ROW else 1


def _sketches(node: Node) -> list[Sketch] | None:
    if node.kernel is None or node.attrs or len(node.kernel.outputs) != 1:
        return None
    kernel = node.kernel
    if len(kernel.stages) > _MOST_OF_ONE or prod(shape_of(kernel.outputs[0])) > _MOST_POINTS:
        return None
    buffers = (*kernel.inputs, *kernel.outputs, *kernel.intermediates)
    if any(buffer.scope() not in ("", "global") or 0 in shape_of(buffer) for buffer in buffers):
        return None
    found = [sketch(stage) for stage in kernel.stages]
    return None if any(each is None for each in found) else found


def _connected(node: Node, sketches: list[Sketch], members: dict) -> list[Sketch]:
    """The sketches of a node with buffers of its own, and what other members write in the place of its inputs."""
    made = {member.var for member in members}
    names: dict = {b: arg if arg in made else None for b, arg in zip(node.kernel.inputs, node.args, strict=True)}
    for each in sketches:
        names[each.written] = (node.var, each.written)
    names[sketches[-1].written] = node.var

    def load(each: Load) -> Load:
        return replace(each, buffer=names.get(each.buffer))

    return [
        replace(each, written=names[each.written], loads=tuple(load(one) for one in each.loads)) for each in sketches
    ]


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
        into.deep[member] = _launches(sketches) + max(behind, default=0)
    if half == 0 or (half < LEAST_DEPTH and group.depth < 2 * LEAST_DEPTH):
        log.append(group.entry("kept", why))
        return []
    return [found for each in halves if each.depth >= LEAST_DEPTH for found in _fitting(graph, each, device, log)]


def _too_large(part: _Part, device: Device) -> str:
    shared = plan_of([sketch(stage) for stage in part.chain.stages], part.chain.own, device).shared_bytes
    if shared > device.shared_bytes - SLACK:
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
    return _Part(
        group.members,
        group.deep,
        group.axes,
        group.cycles,
        group.read,
        chain,
        [arg for arg, _ in inputs.values()],
        results,
    )


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
