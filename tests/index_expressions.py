# SPDX-License-Identifier: Apache-2.0
"""Random index expressions over three iterators, and their values."""

import numpy as np
from hypothesis import strategies as st
from tvm import tirx

from smartmem_tvm.ir.index_map import evaluate, grid

I, J, K = (tirx.Var(name, "int64") for name in "ijk")  # noqa: E741
VARIABLES = (I, J, K)
X = tirx.decl_buffer((8, 8), "float32", "x")


def values(expr, extents: dict) -> np.ndarray:
    shape = tuple(extents.values())
    return np.broadcast_to(evaluate(expr, grid(list(extents), extents)), shape)


def const(value: int) -> tirx.IntImm:
    return tirx.const(value, "int64")


@st.composite
def expressions(draw, depth=3):
    """Index arithmetic with small constants over i, j and k."""
    if depth == 0:
        return draw(st.sampled_from(VARIABLES))
    inner = draw(expressions(depth - 1))
    kind = draw(st.sampled_from(["+", "*", "//", "%", "rotate", "sum", "-"]))
    number = draw(st.integers(1, 12))
    return {
        "+": lambda: inner + number,
        "*": lambda: inner * number,
        "//": lambda: tirx.floordiv(inner, const(number)),
        "%": lambda: tirx.floormod(inner, const(number)),
        "rotate": lambda: tirx.floormod(inner + draw(st.integers(0, 12)), const(number)),
        "sum": lambda: inner * number + draw(expressions(depth - 1)),
        "-": lambda: const(number) - inner,
    }[kind]()


EXTENTS = st.tuples(*[st.integers(1, 13)] * 3)
