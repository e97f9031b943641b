# SPDX-License-Identifier: Apache-2.0
"""Find the buffers of a lowered kernel that share memory."""

from __future__ import annotations

from tvm import ir, tirx

from .walk import collect

_DATA = ir.Op.get("tirx.buffer_data")


def memory_of(body: tirx.Stmt) -> dict[tirx.Var, tirx.Var]:
    """Return on-chip buffer -> allocated buffer: TVM puts a later buffer into the memory of an earlier one."""
    found: dict[tirx.Var, tirx.Var] = {}
    # Inner statements are found first, so declarations come once all allocations are known.
    for allocation in collect(body, tirx.AllocBuffer):
        found[allocation.buffer] = allocation.buffer
    left = collect(body, tirx.DeclBuffer)
    while left:
        known = [each for each in left if source_of(each) in found]
        if not known:
            break
        for each in known:
            found[each.buffer] = found[source_of(each)]
        left = [each for each in left if each.buffer not in found]
    return found


def source_of(declaration: tirx.DeclBuffer) -> tirx.Var | None:
    """Return the buffer whose memory a declared buffer uses, None for a parameter."""
    data = declaration.data
    return data.args[0] if isinstance(data, ir.Call) and data.op.same_as(_DATA) else None
