# SPDX-License-Identifier: Apache-2.0
"""Which vectorized loops TVM's code generators do not make vectors of."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.s_tir import SBlockRealize

from .index_map import is_if_then_else, variables
from .kernel import substitute
from .walk import collect, contains, loads, stores

_REINTERPRET = ir.Op.get("tirx.reinterpret")  # TVM has a rule of its own for it


def has_no_vector(call: ir.Call, lane: tirx.Var) -> bool:
    """Whether TVM computes this number by number: a branch that depends on the lane, or a function like erf."""
    if is_if_then_else(call):
        return lane in variables(call.args[0])
    return isinstance(call.op, ir.Op) and not call.op.get_attr("TVectorizable")


def is_scalarized(loop: tirx.For) -> bool:
    """Whether TVM makes a loop over single numbers of a vectorized one, with loads and stores of single numbers.

    Parameters
    ----------
    loop : tvm.tirx.For
        Vectorized, its body without blocks.
    """
    lane = loop.loop_var
    if contains(loop.body, tirx.IfThenElse, lambda branch: lane in variables(branch.condition)):
        return True
    return bool(_without_vectors(loop))


def _without_vectors(loop: tirx.For) -> list[ir.Call]:
    """What TVM computes number by number in a vectorized loop."""
    lanes = lanes_of(loop)
    calls = [call for call in collect(loop.body, ir.Call) if lanes & set(variables(call))]
    return [call for call in calls if has_no_vector(call, loop.loop_var)]


def without_bindings(func: tirx.PrimFunc, but: Callable[[ir.Call], bool] = lambda call: False) -> set:
    """Stores before which nothing may be bound: TVM takes them out of a vectorized loop, for a function like asinh.

    What is bound in the loop then is not there.

    Parameters
    ----------
    but : callable
        The calls that will be none any more.
    """
    found: set = set()
    for loop in collect(func.body, tirx.For):
        calls = _without_vectors(loop) if loop.kind == tirx.ForKind.VECTORIZED else []
        if any(not call.op.same_as(_REINTERPRET) and not but(call) for call in calls):
            found.update(stores(loop))
    return found


def lanes_of(loop: tirx.For) -> set:
    """The variables that tell the lanes of a vectorized loop apart."""
    found = {loop.loop_var}
    for realize in collect(loop, SBlockRealize):
        bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        found |= {it.var for it, at in bound if found & set(variables(at))}
    return found


def accesses_to_booleans(root) -> list:
    """Loads and stores of booleans: in a vector TVM takes them for wider numbers than they are in memory."""
    read = [load for load in loads(root) if str(load.source.dtype) == "bool"]
    return read + [store for store in stores(root) if str(store.buffer.dtype) == "bool"]


def scattered_bytes(root, loop: tirx.For, places: Places) -> list:
    """Loads of bytes from buffers whose lanes are no aligned vector: in OpenCL TVM makes one number of them."""
    found = [
        load
        for load in loads(root)
        if str(load.source.dtype) in ("int8", "uint8") and "texture" not in load.source.scope()
    ]
    return [
        load
        for load in found
        if places.step(load.indices, load.source, loop) != 1 or places.may_be_torn(load, load.source, loop)
    ]


class Places:
    """Where in memory accesses are, as functions of the loops and threads in a statement, or outside of it.

    Parameters
    ----------
    root : tvm.tirx.Stmt
        Of a scheduled kernel.
    """

    def __init__(self, root: tirx.Stmt):
        self.analyzer = sym.Analyzer()
        spans = {loop.loop_var: ir.Range.from_min_extent(loop.min, loop.extent) for loop in collect(root, tirx.For)}
        for var, span in spans.items():
            self.analyzer.bind(var, span)
        blocks = collect(root, SBlockRealize)
        self.values = {
            it.var: at for each in blocks for it, at in zip(each.block.iter_vars, each.iter_values, strict=True)
        }

    def may_be_torn(self, access, buffer, loop: tirx.For) -> bool:
        """Whether the lanes of a loop may be neighbours in memory that do not begin at a multiple of their number."""
        step = self.step(access.indices, buffer, loop)
        if step not in (None, 1):
            return False
        first = self.analyzer.simplify(substitute(self._offset(access.indices, buffer), {loop.loop_var: loop.min}))
        multiple, width = self.analyzer.modular_set(first), int(loop.extent)
        return step is None or multiple.coeff % width != 0 or multiple.base % width != 0

    def step(self, indices, buffer, loop: tirx.For) -> int | None:
        """Elements from one lane to the next, None where that is not one number."""
        offset, lane = self._offset(indices, buffer), loop.loop_var
        after = substitute(offset, {lane: lane + tirx.const(1, lane.ty.dtype)})
        step = self.analyzer.simplify(after - offset)
        return int(step) if isinstance(step, tirx.IntImm) else None

    def _offset(self, indices, buffer) -> ir.Expr:
        flat = tirx.const(0, "int32")
        for at, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * extent + self._placed(at)
        return self.analyzer.simplify(flat)

    def _placed(self, at: ir.Expr) -> ir.Expr:
        """An index without iterators of blocks, whose values may have those of the blocks around them."""
        while any(var in self.values for var in variables(at)):
            at = substitute(at, self.values)
        return at
