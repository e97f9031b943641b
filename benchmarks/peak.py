# SPDX-License-Identifier: Apache-2.0
"""The machine's peak, measured: multiply-adds on vector registers, with no memory in the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import s_tir, tirx

from smartmem_tvm.schedule.core.nest import PARALLEL, UNROLL, VECTOR, allocate, block, index, loop, scratch, store
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.target import host_target

_STEPS = 200_000
OPERANDS = 2  # registers that hold the factor and the summand


def peak_loop(threads: int) -> tuple[Callable[[], None], int]:
    """A call that keeps every accumulator register of each thread busy, and the operations that it does.

    Parameters
    ----------
    threads : int
        Threads of TVM's pool, each of which does the same.
    """
    target = host_target()
    params = CpuParams.of(target)
    vectors, lanes = params.registers - OPERANDS, params.lanes
    library = tvm.compile(tvm.IRModule({"main": kernel(threads, vectors, lanes)}), target=target)
    operands = tvm.runtime.tensor(np.array([0.5, 1.0], "float32"))  # the sums stay near two
    result = tvm.runtime.tensor(np.zeros((threads, vectors * lanes), "float32"))
    function = library["main"]
    return lambda: function(operands, result), 2 * threads * _STEPS * vectors * lanes


def kernel(threads: int, vectors: int, lanes: int) -> tirx.PrimFunc:
    """The loop, for accumulators of so many vectors: `_STEPS` multiply-adds on each."""
    operands = tirx.decl_buffer([index(2)], "float32", "operands")
    result = tirx.decl_buffer([index(threads), index(vectors * lanes)], "float32", "result")

    def task(thread):
        acc = scratch([vectors * lanes], "float32", "acc")

        def each(body):
            return loop(vectors, lambda v: loop(lanes, lambda j: body(v * index(lanes) + j), "j", VECTOR), "v", UNROLL)

        def multiply_add(at):
            return store(acc, acc[at] * operands[index(0)] + operands[index(1)], at)

        start = each(lambda at: store(acc, operands[index(1)], at))
        total = loop(_STEPS, lambda _: each(multiply_add), "step")
        return allocate([acc], block(start, total, each(lambda at: store(result, acc[at], thread, at))))

    root = s_tir.SBlock([], [], [], "root", loop(threads, task, "thread", PARALLEL))
    func = tirx.PrimFunc([operands, result], s_tir.SBlockRealize([], True, root))
    attrs = {"global_symbol": "main", "tirx.noalias": True, "s_tir": True, "tirx.is_scheduled": True}
    return func.with_attrs(attrs)
