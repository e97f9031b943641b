# SPDX-License-Identifier: Apache-2.0
"""The functional form of a PrimFunc: a `Kernel` is a list of `Stage`, each one block of the loop program.

After ``LegalizeOps`` every operator is a PrimFunc whose blocks are perfect loop nests. This form drops the loops
(they carry no information before scheduling) and keeps what every analysis and rewrite needs: the iterators, what is
written where, and the value. `parse` reads a PrimFunc, `emit` writes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx

from .._tvm import mapped
from .index_map import is_identity
from .recent import Recent
from .regions import access_regions, reads_apart
from .walk import collect, loads, stores

SPATIAL, REDUCE = 0, 2  # tirx.IterVar.iter_type: DataPar, CommReduce
CONSTANTS = "layout_free_buffers"
"""Attribute of a PrimFunc: positions of arguments that are constants. TVM's name, so that its search knows them too."""
DECISIONS = "smartmem.decisions"
"""Attribute of a PrimFunc: what is decided for its schedule, by name (`schedule.core.decisions`)."""
FACTORS = "smartmem.factors"
"""Attribute of a PrimFunc: to which type the factors of its products may be rounded, ``bfloat16`` or ``tf32``."""
CACHE_AXIS = "smartmem.cache_axis"
"""Attribute of a PrimFunc that writes rows into a cache (`ir.cache_rows`): the dimension that counts the rows."""
KEY_AXIS = "smartmem.key_axis"
"""Attribute of a PrimFunc of attention over a cache: position of the cache among its arguments, the dimension that
counts its rows, and how many kernels `BoundKeys` has put before it. Its last input is two numbers: of keys up to the
last one to read, and of those from the first one to read on."""
POSITIONS = "smartmem.positions"
"""Attribute of a PrimFunc of a model with an open length, of whose result nothing reads what is behind the length:
position of the length among its arguments, the axis of the result along which positions lie, how many elements behind
the length have to be zeros, and the numbers of `mask_positions.Extent` along the axis."""
KEYS_END = "smartmem.keys_end"
"""Attribute of a PrimFunc with `POSITIONS` whose last sum may end at the length, as all stages may that run along it
(`analysis.ending_keys`): the place among the iterators of that sum, and the numbers of `mask_positions.Extent`."""
_parsed = Recent(256)
_PLAIN_STATEMENTS = (tirx.BufferStore, tirx.SeqStmt, tirx.Bind, tirx.IfThenElse)


class Opaque(Exception):
    """The PrimFunc has no functional form; the message says which construct is in the way."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One block: for every point of `iters`, run `body` (a store, possibly into itself), after `init` if it reduces.

    Attributes
    ----------
    iters : tuple of tirx.IterVar
        Spatial and reduction iterators, each with domain ``[0, extent)``.
    body, init : tirx.Stmt
        Statements over the iterators. `init` is None for stages that do not reduce.
    """

    name: str
    iters: tuple
    body: tirx.Stmt
    init: tirx.Stmt | None = None
    annotations: dict = field(default_factory=dict)

    @cached_property
    def spatial(self) -> tuple:
        """Variables of the spatial iterators."""
        return tuple(it.var for it in self.iters if it.iter_type == SPATIAL)

    @cached_property
    def reduction(self) -> tuple:
        """Variables of the reduction iterators."""
        return tuple(it.var for it in self.iters if it.iter_type == REDUCE)

    @cached_property
    def extents(self) -> dict:
        """Extent (int) of each iterator variable."""
        return {it.var: int(it.dom.extent) for it in self.iters}

    @cached_property
    def outputs(self) -> tuple:
        """Buffers written by this stage; more than one for a tuple reduction such as argmax."""
        return tuple(dict.fromkeys(store.buffer for store in stores(self.body)))

    @cached_property
    def is_pointwise(self) -> bool:
        """One store, at exactly the spatial iterators, no reduction: ``out[i...] = value(i...)``."""
        return (
            not self.reduction
            and isinstance(self.body, tirx.BufferStore)
            and is_identity(self.body.indices, self.spatial, self.extents)
        )

    @cached_property
    def loads(self) -> tuple:
        """Every load of the body, the stage's own accumulator excepted."""
        return tuple(load for load in loads(self.body) if not any(load.source.same_as(o) for o in self.outputs))

    def with_extents(self, extents: Mapping) -> Stage:
        """The stage with other extents of some iterators, by variable; what it does at a point stays the same."""

        def sized(it: tirx.IterVar) -> tirx.IterVar:
            if it.var not in extents:
                return it
            return tirx.IterVar(ir.Range(0, tirx.const(extents[it.var], it.var.ty.dtype)), it.var, it.iter_type)

        return replace(self, iters=tuple(map(sized, self.iters)))

    def maps(self, buffer) -> list[list]:
        """The different index maps through which this stage reads `buffer`."""
        return self._maps.get(hash(buffer), [])

    @cached_property
    def _maps(self) -> dict[int, list[list]]:
        """Address of each tensor that is read -> the maps through which it is."""
        found: dict[int, list[list]] = {}
        for load in self.loads:
            indices, known = load.indices[:], found.setdefault(hash(load.source), [])
            if not any(_same_places(indices, each) for each in known):
                known.append(indices)
        return found

    def reads(self, buffer) -> bool:
        """Whether `buffer` is loaded, the stage's own accumulator excepted."""
        return hash(buffer) in self._maps


@dataclass(frozen=True, eq=False)
class Kernel:
    """A PrimFunc in functional form: `stages` in execution order, reading `inputs`, writing `outputs`.

    Buffers written by a stage that are not in `outputs` are intermediate results local to the kernel.
    """

    inputs: tuple
    outputs: tuple
    stages: tuple

    @cached_property
    def last(self) -> Stage:
        """The stage that writes the (only) output."""
        return self.stages[-1]

    @cached_property
    def intermediates(self) -> tuple:
        """Buffers that live inside the kernel."""
        written = [b for s in self.stages for b in s.outputs]
        return tuple(b for b in written if not any(b.same_as(o) for o in self.outputs))

    def readers(self, buffer) -> list[Stage]:
        """Stages that load `buffer`."""
        return [s for s in self.stages if s.reads(buffer)]


def _same_places(first: list, second: list) -> bool:
    alike = all(a.same_as(b) for a, b in zip(first, second, strict=True))
    return alike or tvm_ffi.structural_equal(first, second)


def shape_of(buffer) -> tuple[int, ...]:
    """Static shape of a TIR buffer.

    Raises
    ------
    Opaque
        If a dimension is symbolic.
    """
    if not all(isinstance(dim, tirx.IntImm) for dim in buffer.shape):
        raise Opaque(f"buffer {buffer.name} has a symbolic shape")
    return tuple(int(dim) for dim in buffer.shape)


def is_own(load, store: tirx.BufferStore) -> bool:
    """Whether a load reads the element that a store writes, as a reduction reads its accumulator."""
    return load.source.same_as(store.buffer) and tvm_ffi.structural_equal(list(load.indices), list(store.indices))


def substitute(node, mapping: dict):
    """Replace variables in an expression or statement; `mapping` goes from Var to Expr."""
    if not mapping:
        return node
    by_address = {hash(var): value for var, value in mapping.items()}  # comparing two variables takes longer
    return mapped(node, (ir.Var, lambda var: by_address.get(hash(var), var)))


def parse(func: tirx.PrimFunc) -> Kernel:
    """Read a PrimFunc.

    Raises
    ------
    Opaque
        If the function is not a sequence of perfect loop nests around plain blocks (hand-written TIR, scheduled
        functions, data-dependent loops, symbolic shapes).
    """
    return _parsed.get(func, lambda: _parse(func))


def _parse(func: tirx.PrimFunc) -> Kernel:
    if CACHE_AXIS in (func.attrs or {}):
        raise Opaque("it writes rows into a cache")  # and a part of another kernel could not do so in place
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
        raise Opaque("the body is not a root block")
    if root.block.match_buffers:
        raise Opaque("the root block matches buffer regions")
    body = root.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    stages = tuple(parse_nest(nest) for nest in nests)
    written = [b for stage in stages for b in stage.outputs]
    for param in func.params:
        if not tirx.is_buffer_var(param):
            raise Opaque(f"parameter {param.name} is not a buffer")
        shape_of(param)
    outputs = tuple(p for p in func.params if any(p.same_as(b) for b in written))
    inputs = tuple(p for p in func.params if not any(p.same_as(o) for o in outputs))
    for position, param in enumerate(func.params):
        if position >= len(inputs) and not any(param.same_as(o) for o in outputs):
            raise Opaque("an output comes before an input")
    return Kernel(inputs, outputs, stages)


def parse_nest(nest: tirx.Stmt) -> Stage:
    """Read one unscheduled loop nest.

    Raises
    ------
    Opaque
        As `parse` does.
    """
    loops = {}
    while isinstance(nest, tirx.For):
        if nest.kind != tirx.ForKind.SERIAL or nest.annotations:
            raise Opaque("a loop is already scheduled")
        loops[nest.loop_var] = nest
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        raise Opaque(f"a loop nest ends in {type(nest).__name__}, not in a block")
    block = nest.block
    if block.alloc_buffers or block.match_buffers:
        raise Opaque(f"block {block.name_hint} allocates or matches buffers")
    if not (isinstance(nest.predicate, tirx.IntImm) and int(nest.predicate)):
        raise Opaque(f"block {block.name_hint} has a predicate")
    _check_trivial_binding(block, nest.iter_values, loops)
    _check_plain_accesses(block)
    return _without_dummies(
        Stage(block.name_hint, tuple(block.iter_vars), block.body, block.init, dict(block.annotations))
    )


def _without_dummies(stage: Stage) -> Stage:
    """Drop the iterator of extent 1 that TVM gives a block over scalars."""
    ranks = {len(store.indices) for store in (stage.body, stage.init) if isinstance(store, tirx.BufferStore)}
    if ranks != {0} or not stage.spatial:
        return stage
    zero = {var: tirx.const(0, var.ty.dtype) for var in stage.spatial}
    kept = tuple(it for it in stage.iters if it.iter_type == REDUCE)
    init = substitute(stage.init, zero) if stage.init is not None else None
    return Stage(stage.name, kept, substitute(stage.body, zero), init, stage.annotations)


def _check_trivial_binding(block, values, loops: dict) -> None:
    bound = set()
    for it, value in zip(block.iter_vars, values, strict=True):
        extent_is_one = isinstance(it.dom.extent, tirx.IntImm) and int(it.dom.extent) == 1
        if extent_is_one and isinstance(value, tirx.IntImm):
            continue
        loop = loops.get(value)
        if loop is None or value in bound or not tvm_ffi.structural_equal(loop.extent, it.dom.extent):
            raise Opaque(f"block {block.name_hint} binds {it.var.name} to {value}")
        if not isinstance(it.dom.extent, tirx.IntImm) or it.iter_type not in (SPATIAL, REDUCE):
            raise Opaque(f"block {block.name_hint} has an iterator of unknown extent or kind")
        bound.add(value)


def _check_plain_accesses(block) -> None:
    """Buffers may appear only as the source of a load or the target of a store, never as a pointer."""
    kinds = tirx.Stmt, ir.TensorLoad, ir.Var
    nodes = [node for body in (block.body, block.init) if body is not None for node in collect(body, kinds)]
    for node in nodes:
        if isinstance(node, tirx.Stmt) and not isinstance(node, _PLAIN_STATEMENTS):
            raise Opaque(f"block {block.name_hint} contains {type(node).__name__}")
    accesses = sum(isinstance(node, tirx.BufferStore | ir.TensorLoad) for node in nodes)
    if sum(isinstance(node, ir.Var) and tirx.is_buffer_var(node) for node in nodes) > accesses:
        raise Opaque(f"block {block.name_hint} takes the address of a buffer")


def factors_attr(func: tirx.PrimFunc) -> dict[str, str]:
    """The attribute `FACTORS` of a kernel, if it has it: without it, it would be another kernel."""
    return {FACTORS: str(func.attrs[FACTORS])} if FACTORS in (func.attrs or {}) else {}


def emit(kernel: Kernel, attrs: dict | None = None) -> tirx.PrimFunc:
    """Write a kernel as an unscheduled PrimFunc: one serial loop nest per stage under a root block.

    Parameters, iterators and intermediate buffers are renamed canonically, so that equal kernels become
    structurally equal functions whatever they were made from.
    """
    nests = [emit_stage(stage, kernel.inputs) for stage in kernel.stages]
    body = nests[0] if len(nests) == 1 else tirx.SeqStmt(nests)
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(kernel.intermediates))
    func = tirx.PrimFunc([*kernel.inputs, *kernel.outputs], s_tir.SBlockRealize([], True, root))
    return func.with_attrs({"tirx.noalias": True, "s_tir": True, **(attrs or {})})


def emit_stage(stage: Stage, inputs: tuple) -> tirx.Stmt:
    """The unscheduled loop nest of a stage; `inputs` are what no stage of its kernel writes (`reads_apart`)."""
    loops = [tirx.Var(it.var.name.removeprefix("v_"), it.var.ty) for it in stage.iters]
    # A function that is fused twice brings the variables of its body twice.
    bound = [bind.var for bind in collect(stage.body, tirx.Bind)]
    fresh = {var: tirx.Var(var.name, var.ty) for var in [*(it.var for it in stage.iters), *bound]}
    iters = [tirx.IterVar(it.dom, fresh[it.var], it.iter_type) for it in stage.iters]
    body = substitute(stage.body, fresh)
    init = substitute(stage.init, fresh) if stage.init is not None else None
    block = s_tir.SBlock(iters, [], [], stage.name, body, init, annotations=stage.annotations)
    buffers = dict.fromkeys((*stage.outputs, *(load.source for load in stage.loads)))
    reads, writes = access_regions(block, buffers)
    reads = reads_apart(block, reads, inputs)
    block = s_tir.SBlock(iters, reads, writes, stage.name, body, init, annotations=stage.annotations)
    nest: tirx.Stmt = s_tir.SBlockRealize(loops, True, block)
    for it, loop in reversed(list(zip(stage.iters, loops, strict=True))):
        nest = tirx.For(loop, 0, it.dom.extent, tirx.ForKind.SERIAL, nest)
    return nest


def rewrite_stages(
    mod: IRModule, rewrite: Callable[[Stage], Stage], unless: Callable[[Kernel], bool] = lambda _: False
) -> IRModule:
    """Apply `rewrite` to every stage of every unscheduled PrimFunc of `mod`.

    Opaque functions are left alone, and so are kernels for which `unless` holds.
    """
    mod = mod.clone()
    for gvar, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        try:
            kernel = parse(func)
        except Opaque:
            continue
        if unless(kernel):
            continue
        stages = tuple(rewrite(stage) for stage in kernel.stages)
        if any(new is not old for new, old in zip(stages, kernel.stages, strict=True)):
            mod.update_func(gvar, emit(Kernel(kernel.inputs, kernel.outputs, stages), dict(func.attrs)))
    return mod
