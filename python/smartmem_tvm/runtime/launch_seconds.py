# SPDX-License-Identifier: Apache-2.0
"""Time an empty launch in the way in which the kernels of a network are timed."""

from __future__ import annotations

import time

import numpy as np
from tvm import relax
from tvm.target import Target

from ..deploy.build import compile
from ..pipeline import Options
from .kernel_times import kernel_times

_ROUNDS = 20
_SPREAD = 0.3  # seconds: outlasts another process on the core or on its other hardware thread


def launch_seconds(target: Target) -> float:
    """Return the seconds of a kernel with nothing to do: the smallest of many medians of `kernel_times`."""
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.negative(x)))
        builder.emit_func_output(y)
    compiled = compile(builder.get(), target, Options(cuda_graph=False))
    inputs = [np.ones(1, "float32")]
    end = time.perf_counter() + _SPREAD
    found = []
    while not found or time.perf_counter() < end:
        found += (each.seconds for each in kernel_times(compiled, inputs, _ROUNDS).values())
    return min(found)
