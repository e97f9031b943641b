# SPDX-License-Identifier: Apache-2.0
"""The memory accesses of a scheduled kernel in program order, as index expressions over loops and threads.

A kernel is a list of `Launch`, each a grid of thread blocks (on a CPU: a parallel loop), and a launch is a list of
`Access`. Registers and the shared memory of a thread block count as no access. The model includes the optimisations
that every compiler makes for pointers that do not alias: a load is not repeated while nothing has changed, and an
element that a loop updates in place stays in a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from ..ir.bounds import NO_BOUND
from ..ir.guarded_loads import guarded_loads
from ..ir.index_map import variables
from ..ir.kernel import KEY_AXIS
from ..ir.texels import is_texture
from ..ir.vectorized import is_scalarized
from ..ir.walk import collect, contains

_UNROLLED = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


class Unmodelled(Exception):
    """The kernel has no static access pattern (it has a while loop, for example); the text says why."""


@dataclass(eq=False)
class Loop:
    """A loop of one thread.

    Attributes
    ----------
    var, start, extent
        The loop variable, which runs from `start` to `start + extent`.
    kind : tvm.tirx.ForKind
        Serial, unrolled or vectorized.
    step : int
        Memory accesses of one iteration, which is its length in time.
    scalar : bool
        Whether TVM turns the vectorized loop into a scalar loop, with scalar accesses to buffers.
    """

    var: tirx.Var
    start: tirx.Expr
    extent: int
    kind: int
    step: int = 0
    scalar: bool = False


@dataclass(frozen=True, eq=False)
class Access:
    """A load or store of one element of memory, or of several next to each other.

    Attributes
    ----------
    buffer : tvm.tirx.Var
        The buffer; its shape is that of the tensor.
    indices : tuple
        Indices of the element, over the variables of loops and threads.
    store : bool
        Whether the access is a store.
    loops : tuple of Loop
        The loops around the access, outermost first, without those that it is hoisted out of.
    guards : tuple of (condition, bool)
        The access happens where each condition has that value.
    time : int
        Number of memory accesses of the thread before this one, in the first iterations of its loops.
    """

    buffer: tirx.Var
    indices: tuple
    store: bool
    loops: tuple[Loop, ...]
    guards: tuple
    time: int

    @cached_property
    def texture(self) -> bool:
        """Whether the access goes to an image."""
        return is_texture(self.buffer)


@dataclass(eq=False)
class Launch:
    """A grid of thread blocks that run the same accesses.

    Attributes
    ----------
    axes : dict
        Tag (``blockIdx.x`` to ``threadIdx.z``; ``parallel`` on a CPU) -> number of thread blocks or threads along it.
    tags : dict
        Variable -> its tag.
    accesses : list of Access
        The accesses in program order.
    length : int
        Memory accesses of one thread, hoisted ones counted once per iteration.
    """

    axes: dict[str, int] = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    length: int = 0


def launches(func: tirx.PrimFunc) -> list[Launch]:
    """Return the access pattern of a scheduled PrimFunc; attention over a cache reads all of it.

    Raises
    ------
    Unmodelled
        If the number of accesses depends on data.
    """
    func = _without_blocks(_with_all_keys(func))
    walker = _Walker(contains(func.body, tirx.AllocBuffer, lambda allocation: _is_memory(allocation.buffer)))
    walker.kernel(func.body)
    return [launch for launch in walker.found if launch.accesses]


def _with_all_keys(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that reads keys up to a length (`KEY_AXIS`) with the rows of its cache in the length's place."""
    given = (func.attrs or {}).get(KEY_AXIS)
    if given is None:
        return func
    cache, axis = int(given[0]), int(given[1])
    # The last input: the results and workspaces behind it are floats.
    length = next(each for each in reversed(func.params) if str(each.dtype) == "int64")
    keys = tirx.const(int(func.params[cache].shape[axis]), "int64")

    def known(load: ir.TensorLoad):
        return keys if load.source.same_as(length) else load

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.TensorLoad, known)))


def _without_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower blocks to loops and threads, with TVM's passes up to the one that flattens buffers."""
    t = s_tir.transform
    blocks = collect(func.body, s_tir.SBlock)
    # This pass takes half of the time. It is not needed for buffers on chip, which are no accesses.
    compact = any(_is_memory(buffer) for block in blocks for buffer in block.alloc_buffers)
    passes = [
        *(t.CanonicalizeLoop(), t.LowerCrossThreadReduction(), t.LowerInitBlock()),
        *(t.PlanAndUpdateBufferAllocationLocation(), t.ConvertBlocksToOpaque(), t.LiftThreadBinding()),
        *([t.CompactBufferAllocation()] if compact else []),
        *(t.UnifyThreadBinding(), t.LowerMatchBuffer(), t.StmtSimplify(), t.LowerOpaqueBlock()),
    ]
    name = "kernel"
    with tvm.transform.PassContext():
        return tvm.transform.Sequential(passes)(tvm.IRModule({name: func}))[name]


@dataclass(eq=False)
class _BasicBlock:
    """A sequence of statements without a jump, in which loaded elements stay known."""

    loops: tuple[Loop, ...]
    guards: tuple
    known: dict = field(default_factory=dict)


class _Walker:
    def __init__(self, allocates: bool):
        self.found: list[Launch] = []
        self.bound: dict = {}  # variable -> its value
        self.virtual: dict = {}  # variable of virtual threads -> how many
        self.allocates = allocates  # whether the kernel allocates memory
        self.memory: dict[int, bool] = {}  # address of a variable -> whether it is a tensor in memory

    def kernel(self, stmt: tirx.Stmt) -> None:
        """Record the launches of a statement of the host's code, one after the other."""
        if isinstance(stmt, tirx.SeqStmt):
            for each in stmt:
                self.kernel(each)
        elif isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != "thread_extent":
            self.kernel(stmt.body)
        else:
            launch = Launch()
            self.found.append(launch)
            launch.length = self.stmt(stmt, _BasicBlock((), ()), 0)
            self.finish(launch)

    def stmt(self, stmt: tirx.Stmt, at: _BasicBlock, time: int) -> int:
        """Record the accesses of a statement that begins at `time`, and return the time at its end."""
        if isinstance(stmt, tirx.SeqStmt):
            for each in stmt:
                time = self.stmt(each, at, time)
            return time
        # Most of an unrolled kernel is arithmetic on registers, which needs no visit.
        if isinstance(stmt, (tirx.BufferStore, tirx.For, tirx.IfThenElse)) and not self.uses_memory(stmt):
            return time
        if _is_instruction(stmt):
            return self.virtual_threads(stmt, at, time)
        if isinstance(stmt, tirx.For):
            return self.loop(stmt, at, time)
        if isinstance(stmt, tirx.IfThenElse):
            return self.branches(stmt, at, time)
        if isinstance(stmt, tirx.AttrStmt):
            if stmt.attr_key == "thread_extent":
                self.thread(stmt.node.var, stmt.node.thread_tag, stmt.value)
            elif stmt.attr_key == "virtual_thread":
                self.virtual[stmt.node.var] = _constant(stmt.value, "virtual threads")
            return self.stmt(stmt.body, at, time)
        if isinstance(stmt, tirx.Bind):
            self.bound[stmt.var] = self.inline(stmt.value)
            return self.loads([stmt.value], at, time)
        if isinstance(stmt, (tirx.AllocBuffer, tirx.DeclBuffer, tirx.AssertStmt)):
            return time
        raise Unmodelled(f"it has a {type(stmt).__name__}")

    def virtual_threads(self, stmt: tirx.Stmt, at: _BasicBlock, time: int) -> int:
        """Record an instruction that a thread runs for several virtual threads, repeated where these differ."""
        around = {loop.var for loop in at.loops}
        var = next((each for each in self.virtual if each not in around and self.depends(stmt, at, each)), None)
        if var is None:
            return self.instruction(stmt, at, time)
        loop = Loop(var, tirx.const(0, var.ty.dtype), self.virtual[var], tirx.ForKind.UNROLLED)
        loop.step = self.virtual_threads(stmt, _BasicBlock((*at.loops, loop), at.guards), time) - time
        return time + loop.extent * loop.step

    def depends(self, stmt: tirx.Stmt, at: _BasicBlock, var: tirx.Var) -> bool:
        used = (*tirx.analysis.undefined_vars(stmt), *(condition for condition, _ in at.guards))
        return any(each.same_as(var) for expr in used for each in variables(self.inline(expr)))

    def instruction(self, stmt: tirx.Stmt, at: _BasicBlock, time: int) -> int:
        if isinstance(stmt, tirx.For):
            return self.loop(stmt, at, time)
        if isinstance(stmt, tirx.Evaluate):
            return self.loads([stmt.value], at, time)
        time = self.loads([stmt.value, *stmt.indices], at, time)
        return self.access(stmt.buffer, stmt.indices, True, at, at.guards, time)

    def uses_memory(self, stmt: tirx.Stmt) -> bool:
        """Whether a statement may access memory; memory that the kernel allocates is no free variable, so it may."""
        return self.allocates or any(map(self.is_memory, tirx.analysis.undefined_vars(stmt)))

    def is_memory(self, var: ir.Var) -> bool:
        key = hash(var)  # its address: to compare two variables takes longer than to inspect one
        if key not in self.memory:
            self.memory[key] = isinstance(var.ty, tirx.BufferType) and _is_memory(var)
        return self.memory[key]

    def branches(self, stmt: tirx.IfThenElse, at: _BasicBlock, time: int) -> int:
        time = self.loads([stmt.condition], at, time)
        condition = self.inline(stmt.condition)
        for body, value in ((stmt.then_case, True), (stmt.else_case, False)):
            if body is not None:
                time = self.stmt(body, _BasicBlock(at.loops, (*at.guards, (condition, value))), time)
        return time

    def loop(self, stmt: tirx.For, at: _BasicBlock, time: int) -> int:
        extent, guards = self.turns(stmt), at.guards
        if not isinstance(stmt.extent, tirx.IntImm):
            guards = (*guards, (self.inline(stmt.loop_var - stmt.min < stmt.extent), True))
        launch = self.found[-1]
        if stmt.kind == tirx.ForKind.PARALLEL and not at.loops and not launch.axes:
            self.thread(stmt.loop_var, "parallel", stmt.extent)
            return self.stmt(stmt.body, _BasicBlock((), guards), time)
        scalar = stmt.kind == tirx.ForKind.VECTORIZED and is_scalarized(stmt)
        loop = Loop(stmt.loop_var, self.inline(stmt.min), extent, stmt.kind, scalar=scalar)
        loop.step = self.stmt(stmt.body, _BasicBlock((*at.loops, loop), guards), time) - time
        return time + extent * loop.step

    def turns(self, stmt: tirx.For) -> int:
        """Return the trips of a loop; the most of any thread where their number is arithmetic on threads and loops."""
        extent = self.inline(stmt.extent)
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        most = sym.Analyzer().const_int_bound(extent).max_value
        if most >= NO_BOUND or collect(extent, ir.TensorLoad):
            raise Unmodelled(f"the extent of loop {stmt.loop_var.name} is not a constant")
        return max(0, int(most))

    def thread(self, var: tirx.Var, tag: str, extent) -> None:
        axes = self.found[-1].axes
        self.found[-1].tags[var] = tag
        axes[tag] = max(axes.get(tag, 1), _constant(extent, tag))

    def loads(self, values: Sequence, at: _BasicBlock, time: int) -> int:
        for load, guards in (each for value in values for each in guarded_loads(value, at.guards)):
            time = self.access(load.source, load.indices, False, at, self.inlined_guards(guards), time)
        return time

    def access(self, buffer, indices, store: bool, at: _BasicBlock, guards: tuple, time: int) -> int:
        if not _is_memory(buffer):
            return time
        indices = tuple(self.inline(index) for index in indices[:])
        key = (buffer, *(tvm_ffi.structural_hash(index) for index in indices))
        if not store and key in at.known:
            return time
        if store:
            at.known = {other: True for other in at.known if not other[0].same_as(buffer)}
        at.known[key] = True
        self.found[-1].accesses.append(Access(buffer, indices, store, at.loops, guards, time))
        return time + 1

    def inlined_guards(self, guards: tuple) -> tuple:
        return tuple((self.inline(condition), value) for condition, value in guards)

    def inline(self, expr):
        """Return `expr` with bound variables replaced by their values."""
        if not self.bound or not any(var in self.bound for var in variables(expr)):
            return expr
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: self.bound.get(var, var)))

    def finish(self, launch: Launch) -> None:
        """Hoist accesses out of the loops that do not repeat them."""
        stores: dict = {}
        for each in launch.accesses:
            if each.store:
                stores.setdefault(each.buffer, []).append(each)
        launch.accesses = [_hoisted(each, stores.get(each.buffer, [])) for each in launch.accesses]


def _is_instruction(stmt: tirx.Stmt) -> bool:
    vector = isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.VECTORIZED
    return vector or isinstance(stmt, (tirx.BufferStore, tirx.Evaluate))


def _hoisted(access: Access, stores: list[Access]) -> Access:
    if not access.loops:
        return access
    # By address: to compare two variables takes longer.
    used = {hash(v) for e in (*access.indices, *(c for c, _ in access.guards)) for v in variables(e)}
    kept: list[Loop] = []
    for loop in reversed(access.loops):
        inside = [store for store in stores if loop in store.loops]
        again = hash(loop.var) in used or any(not _same_element(access, store) for store in inside)
        if again or not all(inner.kind in _UNROLLED for inner in kept):
            kept.append(loop)
    return access if len(kept) == len(access.loops) else replace(access, loops=tuple(reversed(kept)))


def _same_element(one: Access, other: Access) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(one.indices, other.indices, strict=True))


def _is_memory(buffer: tirx.Var) -> bool:
    return buffer.scope() in ("", "global") or is_texture(buffer)


def _constant(extent, what: str) -> int:
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    raise Unmodelled(f"the extent of {what} is not a constant")
