# SPDX-License-Identifier: Apache-2.0
"""Which numbers of the texels that it reads a kernel uses; that the generated source does too is tested beside it."""

import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

from lowered_kernels import ITEM, J, image, kernel, load, read_integers
from smartmem_tvm.analysis.texel_reads import CONSTANT, LOOP, MEMORY, THREAD, TexelReads, summed, texel_reads

A = image("A", "float32")
N = image("N", "int8")
B = tirx.decl_buffer((64,), "float32", "B")
WHERE = tirx.decl_buffer((64,), "int32", "where")


def put(value, at=0):
    value = tirx.convert(value)
    lanes = tvm_ffi.dtype(str(value.ty.dtype)).lanes
    number = value.astype("float32" if lanes == 1 else f"float32x{lanes}")
    return tirx.BufferStore(B, number, [at if lanes == 1 else tirx.Ramp(at, 1, lanes)])


def nested(*stmts, extent=9):
    return tirx.For(J, 0, extent, tirx.ForKind.SERIAL, tirx.SeqStmt([*stmts, put(0.0, 1)]))


def branch(stmt):
    return tirx.IfThenElse(ITEM < 8, stmt, None)


WHOLE = {
    "all at once": [put(load(A, 0))],
    "all at once and one of them": [put(load(A, 0)), put(load(A, 0, 1))],
    "each number": [put(load(A, 0, lane), lane) for lane in (2, 0, 3, 1)],
    "each number, some in blocks inside": [
        put(load(A, 0, 0)),
        branch(put(load(A, 0, 1))),
        *(put(load(A, 0, i)) for i in (2, 3)),
    ],
    "integers": [put(read_integers(N))],
}
PARTIAL = {
    "one number": ([put(load(A, 0, 2))], CONSTANT),
    "three numbers": ([put(load(A, 0, lane), lane) for lane in (2, 0, 3)], CONSTANT),
    "a number of the thread": ([put(load(A, 0, ITEM & 3))], THREAD),
    "a number of a pass": ([nested(put(load(A, J, J & 3)))], LOOP),
    "a loop that is over": ([nested(put(0.0)), put(load(A, 0, J & 3))], THREAD),
    "a gather": ([put(load(A, 0, WHERE[ITEM] & 3))], MEMORY),
    "a gather and a number": ([put(load(A, 0, WHERE[ITEM] & 3)), put(load(A, 0, 1))], MEMORY),
    "an integer": ([put(read_integers(N, 1))], CONSTANT),
    "an integer of the thread": ([put(read_integers(N, ITEM & 3))], THREAD),
}


def counted(stmts):
    (reads,) = texel_reads(tvm.IRModule({"k": kernel([A, N, B, WHERE], stmts)})).values()
    return reads


@pytest.mark.parametrize("name", WHOLE)
def test_whole_texels(name):
    assert counted(WHOLE[name]) == TexelReads(whole=1)


@pytest.mark.parametrize("name", PARTIAL)
def test_parts_of_texels(name):
    stmts, reason = PARTIAL[name]
    assert counted(stmts) == TexelReads(partial={reason: 1})


def test_each_texel_counts():
    assert counted([put(load(A, 0)), put(load(A, 1))]) == TexelReads(whole=2)


def test_branches_read_for_themselves():
    either = tirx.if_then_else(ITEM < 8, load(A, 0, 0), load(A, 0, 1))
    assert counted([put(either)]) == TexelReads(partial={CONSTANT: 2})
    assert counted([branch(put(load(A, 0))), branch(put(load(A, 0)))]) == TexelReads(whole=2)
    # The generator forgets what it reads behind a block.
    assert counted([branch(put(0.0)), put(load(A, 0)), put(load(A, 0))]) == TexelReads(whole=2)


def test_integers_are_read_wherever_they_are_used():
    assert counted([put(read_integers(N)), put(read_integers(N))]) == TexelReads(whole=2)


def test_what_is_written_counts_where_it_is_read_to_be():
    write = tirx.call_intrin("int32", ir.Op.get("tirx.texture2d_store"), N, 0, 0, 0, 128, load(A, 0) + load(A, 1))
    assert counted([tirx.Evaluate(write)]).whole == 2


def test_sums():
    reads = [TexelReads(2, {LOOP: 1}), TexelReads(1), TexelReads(0, {LOOP: 2, CONSTANT: 1})]
    assert summed(reads) == TexelReads(3, {CONSTANT: 1, LOOP: 3})
    assert summed([]) == TexelReads()
