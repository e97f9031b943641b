# SPDX-License-Identifier: Apache-2.0
"""Loop nests written by hand."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule.core.nest import VECTOR, Scope, block, index, store


@pytest.mark.parametrize(("width", "sizes"), [(16, [8]), (5, [5]), (21, [8, 5]), (9, [8]), (1, [])])
def test_vectors_cover_what_is_no_multiple_of_the_lanes(width, sizes):
    out = tirx.decl_buffer([index(width)], "float32", "out")
    nest = Scope().vectors(width, 8, lambda j: store(out, tirx.const(1.0, "float32"), j))
    vectors = [loop for loop in collect(nest, tirx.For) if loop.kind == VECTOR]
    assert sorted((int(loop.extent) for loop in vectors), reverse=True) == sizes
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", nest))
    func = tirx.PrimFunc([out], root).with_attrs({"global_symbol": "main", "s_tir": True})
    found = tvm.runtime.tensor(np.zeros(width, "float32"))
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](found)
    np.testing.assert_array_equal(found.numpy(), np.ones(width))


def test_nothing_to_do_is_a_statement_too():
    """Of a window of which one place is seen no row moves."""
    nothing = Scope().loop(3, lambda i: block(None))
    assert isinstance(nothing.body, tirx.Evaluate) and block(None, nothing).same_as(nothing)
