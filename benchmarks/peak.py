# SPDX-License-Identifier: Apache-2.0
"""The machine's peak, measured: multiply-adds on vector registers, with no memory in the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm

from smartmem_tvm.runtime.speed_kernels import accumulators, build, multiply_adds
from smartmem_tvm.target import host_target

_STEPS = 200_000


def peak_loop(threads: int) -> tuple[Callable[[], None], int]:
    """A call that keeps every accumulator register of each thread busy, and the operations that it does.

    Parameters
    ----------
    threads : int
        Threads of TVM's pool, each of which does the same.
    """
    target = host_target()
    sums, library = accumulators(target), build({"main": multiply_adds(threads, target, steps=_STEPS)}, target)
    operands = tvm.runtime.tensor(np.array([0.5, 1.0], "float32"))  # the sums stay near two
    result = tvm.runtime.tensor(np.zeros((threads, sums), "float32"))
    function = library["main"]
    return lambda: function(operands, result), 2 * threads * _STEPS * sums
