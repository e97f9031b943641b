# SPDX-License-Identifier: Apache-2.0
"""Kernels that check each index before they use it, and stop with an error at an access out of bounds.

TVM's ``InstrumentBoundCheckers`` finds nothing in present kernels: it runs on flat buffers, and has no size of a buffer
that is a parameter. Here kernels are lowered only to loops over buffers of several dimensions, and a check of all
accesses precedes each statement. The bounds are those of the whole buffer, since a schedule may continue from the end
of a row to the next one (`schedule.cpu.slide`). All loops run serially.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad

from ..errors import UserError
from ..ir.index_map import function_name, is_if_then_else
from ..ir.kernel import substitute
from ..ir.walk import collect_outside

_FAIL = "smartmem.bounds.fail"
# TVM's own pipeline up to here: blocks are gone, and buffers have their dimensions.
_TO_LOOPS = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)
# Nodes with parts that are computed under a condition, or not at all; their loads are collected separately.
_INNER = (ir.Call, tirx.Select, tirx.Let)

Access = tuple[tuple, tirx.Buffer, Sequence, str]


@tvm_ffi.register_error
class OutOfBounds(UserError):
    """A kernel has an index outside its buffer."""


def with_bounds_checks(lowered: tvm.IRModule) -> tvm.IRModule:
    """Return the module with checks: kernels raise `OutOfBounds`, with the kernel, the buffer and the index.

    Parameters
    ----------
    lowered : tvm.IRModule
        Module for a CPU, after `deploy.build.lower`.
    """
    found = _TO_LOOPS(lowered)
    for gvar, func in found.functions_items():
        if isinstance(func, tirx.PrimFunc):
            found[gvar] = func.with_body(_checked(func.body, gvar.name_hint))
    return found


@tvm_ffi.register_global_func(_FAIL, override=True)
def _fail(kernel: str, buffer: str, verb: str, *numbers: int) -> None:
    index, shape = (list(map(int, part)) for part in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]))
    raise OutOfBounds(
        f"Kernel {kernel} {verb} {buffer}{index}, and {buffer} has the shape {shape}: report it, as kernels are made "
        f"to read nothing else."
    )


def _checked(body: tirx.Stmt, kernel: str) -> tirx.Stmt:
    def before(statement: tirx.Stmt) -> tirx.Stmt:
        checks = [_check(each, kernel) for each in _accesses_of(statement)]
        return tirx.SeqStmt([*checks, statement]) if checks else statement

    def in_order(loop: tirx.For) -> tirx.For:
        serial = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
        return before(serial) if loop.kind != tirx.ForKind.SERIAL else before(loop)

    def in_a_row(sequence: tirx.SeqStmt) -> tirx.SeqStmt:
        """Flatten a sequence: a binding is visible only to later statements of the same sequence."""
        parts = [each.seq if isinstance(each, tirx.SeqStmt) else (each,) for each in sequence.seq]
        return tirx.SeqStmt([each for part in parts for each in part])

    statements = (tirx.BufferStore, tirx.IfThenElse, tirx.Evaluate, tirx.Bind, tirx.While)
    return tvm_ffi.structural_map(body, ((statements, before), (tirx.For, in_order), (tirx.SeqStmt, in_a_row)))


def _accesses_of(statement: tirx.Stmt) -> Iterator[Access]:
    """Yield the accesses of a statement itself, without those of nested statements."""
    names = ("value", "condition", "min", "extent")
    for part in (getattr(statement, name, None) for name in names):
        if part is not None:
            yield from _reads(part, ())
    if isinstance(statement, tirx.BufferStore):
        for index in statement.indices:
            yield from _reads(index, ())
        yield (), statement.buffer, statement.indices, "writes"


def _reads(expr: ir.Expr, given: tuple) -> Iterator[Access]:
    """Yield the loads of an expression with the conditions under which they happen; loads in indices come first."""
    found = collect_outside(expr, (TensorLoad, *_INNER), _INNER)
    for inner in (each for each in found if isinstance(each, _INNER)):
        yield from _reads_within(inner, given)
    for load in reversed([each for each in found if isinstance(each, TensorLoad)]):
        yield given, load.source, load.indices, "reads"


def _reads_within(inner: ir.Expr, given: tuple) -> Iterator[Access]:
    if isinstance(inner, tirx.Let):
        yield from _reads(inner.value, given)
        yield from _reads(substitute(inner.body, {inner.var: inner.value}), given)
        return
    if isinstance(inner, tirx.Select):
        condition, yes, no = inner.condition, inner.true_value, inner.false_value
    elif is_if_then_else(inner):
        condition, yes, no = inner.args
    else:
        for each in () if function_name(inner) == "address_of" else inner.args:
            yield from _reads(each, given)
        return
    yield from _reads(condition, given)
    yield from _reads(yes, (*given, condition))
    yield from _reads(no, (*given, tirx.Not(condition)))


def _check(access: Access, kernel: str) -> tirx.Stmt:
    given, buffer, indices, verb = access
    address = tirx.const(0, "int64")
    for index, extent in zip(indices, buffer.shape, strict=True):
        address = address * tirx.Cast("int64", extent) + tirx.Cast("int64", index)
    wrong = tirx.Or(address < 0, address >= tirx.const(prod(map(int, buffer.shape)), "int64"))
    numbers = [tirx.Cast("int64", each) for each in (*indices, *buffer.shape)]
    fail = tirx.Evaluate(tirx.call_packed(_FAIL, kernel, buffer.name, verb, *numbers))
    for condition in (wrong, *reversed(given)):
        fail = tirx.IfThenElse(condition, fail, None)
    return fail
