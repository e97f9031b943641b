# SPDX-License-Identifier: Apache-2.0
"""Small programs for a CPU that each load one part of it: multiply-adds, functions, loads, stores."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, s_tir, tirx
from tvm.target import Target

from ..schedule.core.nest import PARALLEL, UNROLL, VECTOR, allocate, block, index, loop, scratch, store
from ..schedule.cpu.params import CpuParams
from ..transform.lower.vectorize_math import VectorizeMath

STEPS = 20_000
"""Iterations of a loop of multiply-adds."""
OPERANDS = 2  # registers that hold the factor and the summand
VALUES = 1024
"""Inputs of a function's measurement; they stay in the first-level cache."""
ROUNDS = 16
STREAMS = 8  # vectors of a chunk
_ATTRS = {"tirx.noalias": True, "s_tir": True, "tirx.is_scheduled": True}


def accumulators(target: Target) -> int:
    """Return the float32 values that fit in the registers left for accumulators."""
    params = CpuParams.of(target)
    return (params.registers - OPERANDS) * params.lanes


def multiply_adds(threads: int, target: Target, dtype: str = "float32", steps: int = STEPS) -> tirx.PrimFunc:
    """``(operands (2,), result (threads, n))``: `steps` multiply-adds on each of `n` accumulators."""
    params = CpuParams.of(target)
    lanes = params.lanes * 32 // int("".join(filter(str.isdigit, dtype)))
    vectors = params.registers - OPERANDS
    operands = tirx.decl_buffer([index(2)], dtype, "operands")
    result = tirx.decl_buffer([index(threads), index(vectors * lanes)], dtype, "result")

    def task(thread):
        acc = scratch([vectors * lanes], dtype, "acc")

        def each(body):
            return loop(vectors, lambda v: loop(lanes, lambda j: body(v * index(lanes) + j), "j", VECTOR), "v", UNROLL)

        def multiply_add(at):
            return store(acc, acc[at] * operands[index(0)] + operands[index(1)], at)

        start = each(lambda at: store(acc, operands[index(1)], at))
        total = loop(steps, lambda _: each(multiply_add), "step")
        return allocate([acc], block(start, total, each(lambda at: store(result, acc[at], thread, at))))

    return _function([operands, result], loop(threads, task, "thread", PARALLEL))


def function(name: str, target: Target) -> tirx.PrimFunc:
    """``(x (VALUES + ROUNDS,), y (VALUES,))``: a function of `VALUES` numbers, `ROUNDS` times."""
    lanes = CpuParams.of(target).lanes
    x = tirx.decl_buffer([index(VALUES + ROUNDS)], "float32", "x")
    y = tirx.decl_buffer([index(VALUES)], "float32", "y")
    call = _CALLS.get(name) or getattr(tirx, name)

    def vector(start, round_):
        return loop(lanes, lambda j: store(y, call(x[start + j + round_]), start + j), "j", VECTOR)

    def once(round_):
        return loop(VALUES // lanes, lambda i: vector(i * index(lanes), round_), "i")

    return _function([x, y], loop(ROUNDS, once, "round"))


_CALLS: dict[str, Callable] = {
    "pow": lambda x: tirx.power(x, tirx.const(1.7, "float32")),
}
FUNCTIONS = ("exp", "erf", "tanh", "sigmoid", "log", "sqrt", "rsqrt", "pow", "sin", "cos")
"""Functions whose speed is measured; any other is assumed to be no slower than the shortest polynomials."""


def loads(threads: int, target: Target) -> tirx.PrimFunc:
    """``(x (n,), y (threads * m,), chunks, rounds)``: each thread adds up its `chunks` of `STREAMS` vectors."""
    lanes = STREAMS * CpuParams.of(target).lanes

    def task(x, y, thread, chunks, rounds):
        acc = scratch([lanes], "float32", "acc")
        start = _vectors(lanes, target, lambda at: store(acc, tirx.const(0, "float32"), at))

        def add(chunk):
            return _vectors(
                lanes, target, lambda at: store(acc, acc[at] + x[(thread * chunks + chunk) * index(lanes) + at], at)
            )

        total = loop(rounds, lambda _: loop(chunks, add, "chunk"), "round")
        end = _vectors(lanes, target, lambda at: store(y, acc[at], thread * index(lanes) + at))
        return allocate([acc], block(start, total, end))

    return _streaming(threads, task)


def copies(threads: int, target: Target) -> tirx.PrimFunc:
    """Like `loads`, but each thread writes back what it read plus a number, so that it cannot become a ``memcpy``."""
    return _stores(threads, target, lambda x, at: x[at] + tirx.const(1, "float32"))


def stores(threads: int, target: Target) -> tirx.PrimFunc:
    """Like `copies`, but each thread only writes."""
    return _stores(threads, target, lambda x, _: x[index(0)])


def _stores(threads: int, target: Target, value: Callable) -> tirx.PrimFunc:
    lanes = STREAMS * CpuParams.of(target).lanes

    def task(x, y, thread, chunks, rounds):
        def chunk(number):
            first = (thread * chunks + number) * index(lanes)
            return _vectors(lanes, target, lambda at: store(y, value(x, first + at), first + at))

        return loop(rounds, lambda _: loop(chunks, chunk, "chunk"), "round")

    return _streaming(threads, task)


def _vectors(values: int, target: Target, body: Callable) -> tirx.Stmt:
    lanes = CpuParams.of(target).lanes
    return loop(values // lanes, lambda v: loop(lanes, lambda j: body(v * index(lanes) + j), "j", VECTOR), "v", UNROLL)


def _streaming(threads: int, task: Callable) -> tirx.PrimFunc:
    sizes = [tirx.Var(name, "int64") for name in ("reads", "writes", "chunks", "rounds")]
    x, y = (tirx.decl_buffer([size], "float32", name) for size, name in zip(sizes, "xy"))
    body = loop(threads, lambda thread: task(x, y, thread, *sizes[2:]), "thread", PARALLEL)
    return _function([x, y, *sizes[2:]], body)


def _function(params: list, body: tirx.Stmt) -> tirx.PrimFunc:
    root = s_tir.SBlock([], [], [], "root", body)
    return tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root)).with_attrs(_ATTRS)


def build(kernels: dict[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Executable:
    """Compile programs, with functions as this package makes them for a CPU."""
    mod = ir.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels.items()})
    with target:
        return tvm.compile(VectorizeMath()(mod), target=target)
