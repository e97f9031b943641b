# SPDX-License-Identifier: Apache-2.0
"""Find the vectorized loops that TVM's code generators turn into scalar code."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.s_tir import SBlockRealize

from .index_map import is_if_then_else, variables
from .kernel import substitute
from .walk import collect, contains, loads, stores

_REINTERPRET = ir.Op.get("tirx.reinterpret")  # TVM has a special rule for it


def has_no_vector(call: ir.Call, lane: tirx.Var) -> bool:
    """Whether TVM computes a call lane by lane: a branch that depends on the SIMD lane, or a function like erf."""
    if is_if_then_else(call):
        return lane in variables(call.args[0])
    return isinstance(call.op, ir.Op) and not call.op.get_attr("TVectorizable")


def is_scalarized(loop: tirx.For) -> bool:
    """Whether TVM turns a vectorized loop into a scalar loop, with scalar loads and stores.

    Parameters
    ----------
    loop : tvm.tirx.For
        Vectorized loop without blocks in its body.
    """
    lane = loop.loop_var
    if contains(loop.body, tirx.IfThenElse, lambda branch: lane in variables(branch.condition)):
        return True
    return bool(_without_vectors(loop))


def _without_vectors(loop: tirx.For) -> list[ir.Call]:
    """Return the calls that TVM computes lane by lane in a vectorized loop."""
    lanes = lanes_of(loop)
    calls = [call for call in collect(loop.body, ir.Call) if lanes & set(variables(call))]
    return [call for call in calls if has_no_vector(call, loop.loop_var)]


def without_bindings(func: tirx.PrimFunc, but: Callable[[ir.Call], bool] = lambda call: False) -> set:
    """Return the stores before which no variable may be bound.

    TVM moves these stores out of a vectorized loop, for a function like asinh, and a variable that the loop binds would
    be undefined there.

    Parameters
    ----------
    but : callable
        Call -> whether a later pass replaces it.
    """
    found: set = set()
    for loop in collect(func.body, tirx.For):
        calls = _without_vectors(loop) if loop.kind == tirx.ForKind.VECTORIZED else []
        if any(not call.op.same_as(_REINTERPRET) and not but(call) for call in calls):
            found.update(stores(loop))
    return found


def lanes_of(loop: tirx.For) -> set:
    """Return the variables that differ between the lanes of a vectorized loop."""
    found = {loop.loop_var}
    for realize in collect(loop, SBlockRealize):
        bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        found |= {it.var for it, at in bound if found & set(variables(at))}
    return found


def accesses_to_booleans(root) -> list:
    """Return the loads and stores of booleans: in a vector, TVM assumes them wider than they are in memory."""
    read = [load for load in loads(root) if str(load.source.dtype) == "bool"]
    return read + [store for store in stores(root) if str(store.buffer.dtype) == "bool"]


def scattered_bytes(root, loop: tirx.For, places: Places) -> list:
    """Return the loads of bytes whose lanes are no aligned vector in a buffer: in OpenCL, TVM loads one number."""
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
    """Places of accesses in memory, as functions of the loops and threads inside and outside of a statement.

    Parameters
    ----------
    root : tvm.tirx.Stmt
        Statement of a scheduled kernel.
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
        """Whether the lanes of a loop may be an unaligned vector: neighbours, not at a multiple of their number."""
        step = self.step(access.indices, buffer, loop)
        if step not in (None, 1):
            return False
        first = self.analyzer.simplify(substitute(self._offset(access.indices, buffer), {loop.loop_var: loop.min}))
        multiple, width = self.analyzer.modular_set(first), int(loop.extent)
        return step is None or multiple.coeff % width != 0 or multiple.base % width != 0

    def step(self, indices, buffer, loop: tirx.For) -> int | None:
        """Return the stride between lanes in elements, None if it is not constant."""
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
        """Return an index with the iterators of blocks replaced by their values, through all enclosing blocks."""
        while any(var in self.values for var in variables(at)):
            at = substitute(at, self.values)
        return at
