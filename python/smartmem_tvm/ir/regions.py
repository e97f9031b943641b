# SPDX-License-Identifier: Apache-2.0
"""The read regions that a block declares if it reads one tensor at several places."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from .index_map import is_if_then_else, variables
from .walk import collect, contains, loads


def access_regions(block: s_tir.SBlock, buffers: Collection[tirx.Var]) -> tuple[list, list]:
    """Return the regions that a block reads and writes of `buffers`, as TVM infers them: one for each buffer."""
    reads, writes, _ = s_tir.analysis.get_sblock_access_region(block, {buffer: buffer for buffer in buffers})
    return list(reads), list(writes)


def reads_apart(block: s_tir.SBlock, reads: Sequence, inputs: Collection[tirx.Var]) -> list:
    """Return the regions that a reduction reads, one for each place at which it reads an input of the kernel.

    Before (the product of two parts of one tensor)::

        T.reads(y[T.min(i, j):T.max(i, j) + 1, k:k + 17])

    After::

        T.reads(y[i, k], y[j, k + 16], y[i, k])

    TVM's analysis joins the places to one region, which no index walks through, but TVM's schedule rules for reductions
    expect a single element of each operand. The first region appears twice because TVM's rule for matmuls takes two
    regions for two tensors, and caches each. Regions with conditions or variables of inner loops stay unchanged.

    Parameters
    ----------
    inputs : collection of tirx.Var
        Tensors that no stage of the kernel writes; the regions of others decide where their stages are computed.
    """
    iters = [it.var for it in block.iter_vars]
    if not any(it.iter_type == tirx.IterVar.CommReduce for it in block.iter_vars) or _has_conditions(block.body):
        return list(reads)
    found: list = []
    for region in reads:
        places = _places(block, region.source) if any(region.source.same_as(each) for each in inputs) else []
        plain = all(any(var.same_as(it) for it in iters) for place in places for i in place for var in variables(i))
        several = len(places) > 1 and plain
        found += [_element(region.source, place) for place in (*places, places[0])] if several else [region]
    return found


def reads_joined(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with one region for each tensor that a block reads, so that records of equal kernels match."""
    if not any(map(_is_apart, collect(func.body, s_tir.SBlock))):
        return func

    def join(block: s_tir.SBlock) -> s_tir.SBlock:
        if not _is_apart(block):
            return block
        reads, writes = access_regions(block, dict.fromkeys(each.source for each in (*block.reads, *block.writes)))
        about = (block.alloc_buffers, block.match_buffers, block.annotations)
        return s_tir.SBlock(block.iter_vars, reads, writes, block.name_hint, block.body, block.init, *about)

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, join)))


def _is_apart(block: s_tir.SBlock) -> bool:
    sources = [region.source for region in block.reads]
    return len(set(sources)) < len(sources)


def _has_conditions(body: tirx.Stmt) -> bool:
    return contains(body, tirx.IfThenElse) or contains(body, ir.Call, is_if_then_else)


def _places(block: s_tir.SBlock, source: tirx.Var) -> list[list]:
    """Return the distinct indices of the loads of a tensor."""
    found: list[list] = []
    for load in loads(block.body):
        same = any(tvm_ffi.structural_equal(list(load.indices), each) for each in found)
        if load.source.same_as(source) and not same:
            found.append(list(load.indices))
    return found


def _element(source: tirx.Var, place: list) -> ir.TensorRegion:
    return tirx.BufferRegion(source, [ir.Range.from_min_extent(i, tirx.const(1, str(i.ty.dtype))) for i in place])
