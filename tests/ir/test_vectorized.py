# SPDX-License-Identifier: Apache-2.0
"""Vectorized loops of which no vectors are made: the same ones as TVM's pass finds."""

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from smartmem_tvm.ir.vectorized import is_scalarized

A = tirx.decl_buffer((64,), "float32", "A")
B = tirx.decl_buffer((64,), "float32", "B")
LANE, ROW = (tirx.Var(name, "int64") for name in ("lane", "row"))
AT = ROW * 4 + LANE


def loop(value, condition=None):
    store = tirx.BufferStore(B, value, [AT])
    body = store if condition is None else tirx.IfThenElse(condition, store, None)
    return tirx.For(LANE, 0, 4, tirx.ForKind.VECTORIZED, body)


LOAD, FIRST = tirx.BufferLoad(A, [AT]), tirx.BufferLoad(A, [ROW])
LOOPS = {
    "copy": (loop(LOAD), False),
    "exp": (loop(T.exp(LOAD)), False),
    "erf": (loop(LOAD * T.erf(LOAD)), True),
    "erf of what all lanes share": (loop(LOAD * T.erf(FIRST)), False),
    "select by lane": (loop(T.if_then_else(AT < 62, LOAD, T.float32(0))), True),
    "select by row": (loop(T.if_then_else(ROW < 12, LOAD, T.float32(0))), False),
    "branch by lane": (loop(LOAD, AT < 62), True),
    "branch by row": (loop(LOAD, ROW < 12), False),
}


@pytest.mark.parametrize("what", LOOPS)
def test_as_tvm_does(what):
    made, expected = LOOPS[what]
    assert is_scalarized(made) == expected == _loops_are_left(made)


def _loops_are_left(made):
    outer = tirx.For(ROW, 0, 16, tirx.ForKind.SERIAL, made)
    func = tirx.PrimFunc([A, B], outer).with_attr({"global_symbol": "f", "tirx.noalias": True})
    mod = tvm.IRModule({"f": func.with_attr("target", tvm.target.Target("opencl"))})
    left: list = []
    tvm_ffi.structural_walk(tirx.transform.VectorizeLoop()(mod)["f"].body, (tirx.For, left.append))
    return len(left) > 1
