# SPDX-License-Identifier: Apache-2.0
"""Build a kernel from a tensor expression, schedule it, run it, compare it with numpy."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.ir.kernel import DECISIONS
from smartmem_tvm.schedule import CpuParams, ScheduleKernels, default_rules

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def prim_func(inputs, outputs) -> tirx.PrimFunc:
    return te.create_prim_func([*inputs, *outputs]).with_attr("global_symbol", "main")


def family(func: tirx.PrimFunc) -> str:
    """Name of the rule that takes the kernel."""
    return next(type(r).__name__ for r in default_rules() if r.apply(func, TARGET) is not None)


def run(func: tirx.PrimFunc, arrays, shape, dtype="float32") -> np.ndarray:
    library = tvm.compile(tvm.IRModule({"main": func}), target=TARGET)
    out = tvm.runtime.tensor(np.full(shape, 7, dtype))  # what is not written shows
    library["main"](*(tvm.runtime.tensor(a) for a in arrays), out)
    return out.numpy()


@pytest.fixture
def check():
    """``check(inputs, output, reference, rule)``: returns the scheduled function after comparing its result."""

    def check(inputs, output, reference, rule, draw=None, params: CpuParams | None = None, given: dict | None = None):
        func, rng = prim_func(inputs, [output]), np.random.default_rng(0)
        func = func.with_attr(DECISIONS, given) if given else func
        draw = draw or (lambda tensor: rng.standard_normal([int(d) for d in tensor.shape]))
        arrays = [draw(t).astype(str(t.dtype)) for t in inputs]
        rules = None
        if params is not None:
            rules = [r for r in default_rules() if type(r).__name__ == rule]
            for r in rules:
                r.params = params
        else:
            assert family(func) == rule
        with TARGET:
            mod = ScheduleKernels(rules)(tvm.IRModule({"main": func}))
        scheduled = mod["main"]
        assert scheduled.attrs["tirx.is_scheduled"]
        shape = tuple(int(d) for d in output.shape)
        got, want = run(scheduled, arrays, shape, str(output.dtype)), reference(*arrays)
        np.testing.assert_allclose(got, want.reshape(shape), rtol=2e-5, atol=2e-5 * max(1, np.abs(want).max()))
        return scheduled

    return check
