# SPDX-License-Identifier: Apache-2.0
"""GatherRows: a kernel that looks rows up in a large table reads these rows in place of the table."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...ir.block import shape_of as shape_of_expr
from ...ir.compose import tidy
from ...ir.graph import Graph, Node, normalise, rewrite_graphs
from ...ir.index_map import variables
from ...ir.kernel import SPATIAL, Kernel, Stage, shape_of, substitute
from ...ir.sizes import ROWS
from ...ir.walk import loads


@tvm.transform.module_pass(opt_level=0, name="smartmem.GatherRows")
class GatherRows:
    """Read rows of a constant whose numbers are data, as an embedding does, by a call of their own (FlexNN slices it).

    Before, in one kernel, with 50257 rows of 768 numbers in ``table``::

        y[i, j] = norm(table[ids[i], :] + position[i, :])[j]

    After, where ``smartmem.rows`` is for `StreamWeights`, which reads them from the file::

        rows = smartmem.rows(table, ids);   y[i, j] = norm(rows[i, :] + position[i, :])[j]

    Refuses (leaves as it is) a kernel that reads the table in two ways, or other than whole rows.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, self._gather)

    def _gather(self, graph: Graph) -> list[dict]:
        log: list[dict] = []
        found: list[tuple[_Lookup, relax.Var]] = []
        for node in graph:
            if node.kernel is None or len(node.kernel.outputs) != 1:
                continue
            for buffer, table in node.large_constants.items():
                lookup = _Lookup.of(node, buffer, table)
                if lookup is None:
                    continue
                rows = next((var for other, var in found if other.same(lookup)), None)
                if rows is None:
                    rows = lookup.insert(graph, node)
                    found.append((lookup, rows))
                    count = f"{shape_of_expr(rows)} of {tuple(map(int, table.value.shape))}"
                    entry = {"pass": "GatherRows", "operator": (node.members or [node.var.name])[0]}
                    log.append({**entry, "action": "rows are read alone", "tensor": rows.name, "reason": count})
                _read(graph, node, buffer, rows)
        return log


@dataclass(frozen=True, eq=False)
class _Lookup:
    """A kernel's lookup of rows in a table.

    Attributes
    ----------
    table : ir.Constant
    vars_ : list
        New iterators over the rows, in the order in which the rows are gathered.
    extents : tuple of int
        Extents of `vars_`.
    number : Expr
        Index of a row in the table, over `vars_`.
    data : dict
        Buffers that `number` reads -> the arguments that they are bound to.
    """

    table: ir.Constant
    vars_: list
    extents: tuple[int, ...]
    number: object
    data: dict

    @classmethod
    def of(cls, node: Node, buffer, table: ir.Constant) -> _Lookup | None:
        """Return the lookup of a kernel; None unless it reads whole rows, all by one index."""
        if len(buffer.shape) < 2:
            return None
        first: _Lookup | None = None
        bound = dict(zip(node.kernel.inputs, node.args, strict=True))
        for stage in node.kernel.stages:
            for load in stage.loads:
                if not load.source.same_as(buffer):
                    continue
                each = cls._read_by(stage, load, table, bound)
                if each is None or (first is not None and not first.same(each)):
                    return None
                first = first or each
        return first

    @classmethod
    def _read_by(cls, stage: Stage, load, table: ir.Constant, bound: dict) -> _Lookup | None:
        number, *rest = load.indices
        data = {each.source: bound.get(each.source) for each in loads(number)}
        vars_ = [var for var in variables(number) if var in stage.extents]
        along = [(at, size) for at, size in zip(rest, shape_of(load.source)[1:], strict=True) if size > 1]
        bare = all(isinstance(at, ir.Var) and stage.extents.get(at) == size and at not in vars_ for at, size in along)
        if not data or None in data.values() or not bare or len({at for at, _ in along}) < len(along):
            return None
        new = [tirx.Var(f"i{n}", var.ty) for n, var in enumerate(vars_)]
        number = substitute(number, dict(zip(vars_, new, strict=True)))
        return cls(table, new, tuple(stage.extents[var] for var in vars_), number, data)

    def same(self, other: _Lookup) -> bool:
        """Whether two lookups give the same rows in the same order."""
        if not (self.table.same_as(other.table) or self.table.value.same_as(other.table.value)):
            return False
        if self.extents != other.extents or list(self.data.values()) != list(other.data.values()):
            return False
        mine = dict(zip(other.data, self.data, strict=True))
        number = substitute(other.number, dict(zip(other.vars_, self.vars_, strict=True)))

        def load(each):
            return mine[each.source][tuple(each.indices)] if each.source in mine else each

        return tvm_ffi.structural_equal(self.number, tvm_ffi.structural_map(number, (ir.TensorLoad, load)))

    def insert(self, graph: Graph, before: Node) -> relax.Var:
        """Insert nodes that compute the indices of the rows and read the rows; return the variable of the rows."""
        numbers = tirx.decl_buffer(list(self.extents), "int64", "numbers")
        iters = tuple(
            tirx.IterVar(ir.Range(0, tirx.const(extent, var.ty.dtype)), var, SPATIAL)
            for var, extent in zip(self.vars_, self.extents, strict=True)
        )
        body = tirx.BufferStore(numbers, self.number.astype("int64"), self.vars_)
        kernel = Kernel(tuple(self.data), (numbers,), (Stage("numbers", iters, body),))
        name = before.var.name
        label = f"row_numbers {name}_numbers({', '.join(map(str, self.extents))})"
        ids = relax.DataflowVar(f"{name}_numbers", relax.TensorType(self.extents, "int64"))
        which = Node(ids, before.value, members=[label])
        normalise(which, kernel, list(self.data.values()))
        shape = (*self.extents, *map(int, self.table.value.shape[1:]))
        rows = relax.DataflowVar(f"{name}_rows", relax.TensorType(shape, str(self.table.value.dtype)))
        call = relax.op.call_dps_packed(ROWS, relax.Tuple([self.table, ids]), out_ty=rows.ty)
        graph.insert(before, [which, Node(rows, call, reason="rows of a table, read from a file")])
        return rows


def _read(graph: Graph, node: Node, table, rows: relax.Var) -> None:
    """Let a kernel read rows in the place of a table."""
    new = tirx.decl_buffer(list(shape_of_expr(rows)), table.dtype, "rows")

    def rewritten(stage: Stage) -> Stage:
        def load(each):
            if not each.source.same_as(table):
                return each
            own = [var for var in variables(each.indices[0]) if var in stage.extents]
            return new[(*own, *each.indices[1:])]

        def of(statement):
            return None if statement is None else tvm_ffi.structural_map(statement, (ir.TensorLoad, load))

        return Stage(stage.name, stage.iters, of(stage.body), of(stage.init), stage.annotations)

    kernel = node.kernel
    inputs = tuple(new if each.same_as(table) else each for each in kernel.inputs)
    bound = dict(zip(inputs, node.args, strict=True)) | {new: rows}
    kernel = tidy(Kernel(inputs, kernel.outputs, tuple(map(rewritten, kernel.stages))))
    graph.rebind(node, kernel, [bound[each] for each in kernel.inputs])
