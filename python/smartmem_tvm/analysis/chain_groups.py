# SPDX-License-Identifier: Apache-2.0
"""Group small kernels of a graph into chains: one launch, if it takes less time than the separate kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from tvm import ir

from ..ir.graph import Graph, Node
from ..ir.kernel import shape_of
from ..ir.sizes import data_bytes
from ..tables.fusion_policy import LEAST_CHAIN_KERNELS
from ..target import Limits
from .chain_cost import LANES, Axes, Load, Sketch, alone, cycles, groups_of, sketch

_MOST_OF_ONE = 160  # most stages of a kernel in a chain
_OF_A_ROW = 4  # most dependent sums that a kernel computes in one launch: norms have two or three
_MOST_POINTS = 1 << 20  # most elements of a kernel's result
_MOST_STAGES = 512  # most kernels of a chain, before its steps are rolled up
_MOST_READ = 48  # most tensors that a chain reads
_HASHED = 1 << 20  # bytes; constants up to this size are compared by their content


@dataclass(eq=False)
class Group:
    """Kernels that are to become one chain, in order."""

    members: dict[Node, list[Sketch]] = field(default_factory=dict)
    deep: dict[Node, int] = field(default_factory=dict)
    axes: Axes = field(default_factory=Axes)
    cycles: float = 0.0
    read: set = field(default_factory=set)  # arguments of its kernels from outside, by `identity`

    @property
    def depth(self) -> int:
        """Launches of the members that wait for each other."""
        return max(self.deep.values(), default=0)

    def wait(self, node: Node, own: int, producers: Iterable[Node]) -> None:
        """Note how many launches a member waits for, its `own` included, after those of its producers."""
        self.deep[node] = own + max((self.deep[p] for p in producers if p in self.deep), default=0)

    def entry(self, action: str, reason: str) -> dict:
        """Return the entry for the log of decisions, which `explain` shows."""
        names = [label for member in self.members for label in member.members]
        first = next(iter(self.members))
        entry = {"pass": "MergeChains", "operator": (first.members or [first.var.name])[0], "action": action}
        return {**entry, "kernels": len(self.members), "members": names, "reason": reason}


class Search:
    """A search for groups of small kernels, without cycles: no kernel outside both depends on a group and feeds it."""

    def __init__(self, graph: Graph, device: Limits):
        self.graph, self.device = graph, device
        self.order = list(graph)
        self.place = {node: number for number, node in enumerate(self.order)}
        self.producers = {node: [p for p in map(graph.producer, node.operands) if p] for node in self.order}
        sketches = {node: _sketches(node) for node in self.order}
        self.small = {node: each for node, each in sketches.items() if each and self._is_small(each)}
        self.launches = {node: launches(each) for node, each in self.small.items()}
        self.identity = {arg: identity(arg) for node in self.small for arg in node.args}
        self.inside: dict[Node, Group] = {}
        self.found: list[Group] = []

    def groups(self) -> list[Group]:
        """Return the groups; those with independent parts are searched first, as more processors can work on them."""
        for least in (LANES, 1):
            free = {node: None for node in self.order if node in self.small and node not in self.inside}
            for seed in self._deep_enough(free):
                if seed not in free:
                    continue
                group = self._grown(seed, free, least)
                if group.depth >= LEAST_CHAIN_KERNELS:
                    self.found.append(group)
                    self.inside |= dict.fromkeys(group.members, group)
                    for member in group.members:
                        del free[member]
        return self.found

    def _deep_enough(self, free: dict) -> list[Node]:
        """Return the free kernels that begin a long enough path of free kernels."""
        behind: dict = {}
        for node in reversed(free):
            readers = (behind[r] for r in self.graph.readers(node.var) if r in behind)
            behind[node] = self.launches[node] + max(readers, default=0)
        return [node for node in free if behind[node] >= LEAST_CHAIN_KERNELS]

    def _is_small(self, sketches: list[Sketch]) -> bool:
        """Whether a chain may pay for a kernel, which there runs on one processor, or on several if it has parts."""
        groups = groups_of(Axes().having(sketches).parts, self.device)
        return cycles(sketches, groups) < 2 * alone(sketches, launches(sketches), self.device)

    def _grown(self, seed: Node, free: dict, least: int) -> Group:
        """Return the group that grows from a seed, in the order of the graph.

        Kernels that do not depend on the group join together with a reader.
        """
        group, beside = Group(), set()
        early: dict[Node, list[Node]] = {}  # free kernel that depends on no member -> those of its producers
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

    def _taken(self, group: Group, seed: Node, first: list[Node], node: Node, least: int) -> set[Node] | None:
        """Add a node to a group, if possible with `first`; return the nodes that now wait for it, None if not added."""
        for nodes in ([*first, node], [node]) if first else ([node],):
            beside: set[Node] | None = set()
            if len(nodes) > 1 or self.inside:
                beside = self._beside(seed, node, {*group.members, *nodes})
            if beside is not None and self._joins(group, nodes, least):
                return beside
        return None

    def _beside(self, seed: Node, last: Node, members: set[Node]) -> set[Node] | None:
        """Return the other nodes that depend on `members`, from a seed to a node; None if a member depends on them."""
        between = self.order[self.place[seed] : self.place[last] + 1]
        beside: set[Node] = set()
        grown = True
        while grown:  # an early node of another group also waits for the late nodes of that group
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

    def _joins(self, group: Group, nodes: list[Node], least: int) -> bool:
        """Add nodes to a group if they take less time there than alone."""
        new = Group(dict(group.members), dict(group.deep), group.axes, 0.0, set(group.read))
        sketches: list[Sketch] = []
        for node in nodes:
            sketches += _connected(node, self.small[node], new.members)
            new.read |= {self.identity[arg] for arg in node.args if self.graph.producer(arg) not in new.members}
            new.wait(node, self.launches[node], self.producers[node])
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
    """Return the `nodes` that are in `early`, each after its early producers."""
    found: dict[Node, None] = {}
    for node in nodes:
        if node in early and node not in found:
            found |= dict.fromkeys(_all_of(early, early[node]))
            found[node] = None
    return list(found)


def launches(sketches: list[Sketch]) -> int:
    """Return the launches of a separate kernel: one, or one for each sum if many sums depend on each other."""
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
    """Return the sketches of a node with distinct buffers; inputs that members write have those members' buffers."""
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


def identity(arg) -> object:
    """Return a key that is equal for arguments with the same numbers."""
    if isinstance(arg, ir.Constant) and data_bytes(arg.value) <= _HASHED:
        value = arg.value.numpy()
        return value.shape, str(arg.value.dtype), value.tobytes()
    return arg
