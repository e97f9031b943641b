# SPDX-License-Identifier: Apache-2.0
"""Find misaligned vectors and vectors of booleans in kernels, as the code generators for GPUs get them.

Indices are evaluated for random threads and loop iterations, and not proven; the pass under test proves them.
"""

import numpy as np
import tvm
from tvm import ir, tirx

from smartmem_tvm.deploy import build
from smartmem_tvm.ir.walk import collect, loads, stores
from smartmem_tvm.target import is_cuda

_POINTS = 512
_OPERATIONS = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Div: lambda a, b: np.trunc(a / b).astype("int64"),
    tirx.Mod: np.fmod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}
_CALLS = {
    "tirx.shift_right": np.right_shift,
    "tirx.shift_left": np.left_shift,
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.if_then_else": np.where,
}


def lowered_kernels(mod, target, options) -> dict[str, tirx.PrimFunc]:
    """The device kernels of a module of operators, by name."""
    found: dict = {}

    def keep(kernels: tvm.IRModule) -> None:
        found.update({gvar.name_hint: func for gvar, func in kernels.functions_items()})

    with target:
        lowered = build.lower(build.optimize(mod, options=options), target, options).module
    build.generate(lowered, target, keep)
    return found


def wrong_vectors(kernel: tirx.PrimFunc, cuda: bool) -> list[str]:
    """Return the faults of the vectors that a kernel loads and stores, in words."""
    values, wrong = _points(kernel), []
    for access in (*loads(kernel.body), *stores(kernel.body)):
        stored = isinstance(access, tirx.BufferStore)
        buffer, index = (access.buffer if stored else access.source), access.indices[-1]
        if not isinstance(index, tirx.Ramp):
            continue
        what = f"{buffer.name}[{index}] of {buffer.dtype}"
        if str(buffer.dtype).startswith("bool"):
            wrong.append(f"{what} is a vector of booleans")
        # TVM itself splits a misaligned or strided load.
        elif cuda and stored and int(index.stride) == 1 and np.any(_value(index.base, values) % int(index.lanes)):
            wrong.append(f"{what} is torn")
    return wrong


def wrong_in(mod, target, options) -> list[str]:
    """Return the faults of all kernels of a module of operators."""
    kernels = lowered_kernels(mod, target, options)
    assert kernels
    cuda = is_cuda(target)
    return [f"{name}: {wrong}" for name, kernel in kernels.items() for wrong in wrong_vectors(kernel, cuda)]


def _points(kernel: tirx.PrimFunc) -> dict:
    """Return random numbers for the variables of threads and loops, and the values of bound variables."""
    rng = np.random.default_rng(0)
    threads = [each for each in collect(kernel.body, tirx.AttrStmt) if str(each.attr_key) == "thread_extent"]
    spans = [(each.node.var, int(each.value)) for each in threads]
    spans += [(loop.loop_var, int(loop.extent)) for loop in collect(kernel.body, tirx.For)]
    values = {var: rng.integers(0, extent, _POINTS) for var, extent in spans}
    for bind in collect(kernel.body, tirx.Bind):
        values[bind.var] = _value(bind.value, values)
    return values


def _value(expr, values) -> np.ndarray:
    if isinstance(expr, tirx.IntImm):
        return np.full(_POINTS, int(expr))
    if isinstance(expr, ir.Var):
        return values[expr]
    if isinstance(expr, tirx.Cast):
        return _value(expr.value, values)
    if isinstance(expr, tirx.Not):
        return np.logical_not(_value(expr.a, values))
    if isinstance(expr, tirx.Select):
        return np.where(*(_value(each, values) for each in (expr.condition, expr.true_value, expr.false_value)))
    if isinstance(expr, ir.Call) and expr.op.name in _CALLS:
        return _CALLS[expr.op.name](*(_value(each, values) for each in expr.args))
    if type(expr) in _OPERATIONS:
        return _OPERATIONS[type(expr)](_value(expr.a, values), _value(expr.b, values))
    # A load from memory may give any number.
    return np.random.default_rng(1).integers(0, 97, _POINTS)
