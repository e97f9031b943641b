# SPDX-License-Identifier: Apache-2.0
"""Chains in one launch: by one group of threads, by a group for some parts, by a thread for each part."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

from cuda_on_cpu import run as run_on_cpu
from cuda_on_cpu import source_of
from helpers import constant, legal, op, random, run
from smartmem_tvm.analysis.chain_cost import LARGE, plan_of, sketch
from smartmem_tvm.ir.chain import read_chain
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule.gpu.chain import GpuChain
from smartmem_tvm.target import Limits, device_of, host_target, parse_target
from smartmem_tvm.transform import EliminateLayout, FuseOperators, MergeChains

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
CUDA = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
OPENCL = parse_target("opencl")


def at(x, step):
    return op.squeeze(op.strided_slice(x, [0], [step], [step + 1]), axis=[0])


def together(kept):
    return op.concat([op.expand_dims(each, 0) for each in kept], axis=0)


def cells(steps, batch, width):
    """A product, a statistic of the row, a gate: all of each state is read by each element of the next one."""
    w = constant(width, width)

    def build(x, h):
        kept = []
        for step in range(steps):
            own = op.add(op.multiply(op.matmul(h, w), relax.const(0.5 / width)), at(x, step))
            h = op.tanh(op.subtract(own, op.max(h, axis=1, keepdims=True)))
            kept.append(h)
        return together(kept)

    return build, (steps, batch, width), (batch, width)


def channels(steps, batch, width):
    """Elements that only read themselves, two steps back, and what all steps have."""
    scale = constant(width)

    def build(x, a):
        b = op.multiply(a, scale)
        for step in range(steps):
            a, b = op.tanh(op.multiply(op.exp(op.minimum(b, at(x, step))), op.subtract(a, op.abs(b)))), op.sigmoid(a)
        return together([a, b])

    return build, (steps, batch, width), (batch, width)


def sums(steps, batch, width):
    """A state of 16 numbers for each channel, of which one sum is kept."""
    scale = constant(width, 16)

    def build(x, h):
        kept = []
        for step in range(steps):
            h = op.add(op.multiply(op.exp(op.negative(op.abs(h))), scale), op.expand_dims(at(x, step), 2))
            kept.append(op.sum(h, axis=2))
        return together(kept)

    return build, (steps, batch, width), (batch, width, 16)


def merged(build, *shapes):
    """A module of operators, one of a chain, and the chain's function."""
    before = legal(build, *shapes)
    mod = before
    for each in (EliminateLayout(), FuseOperators(), MergeChains(replace(LARGE, launch_cycles=1e5))):
        mod = each(mod)
    found = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc) and read_chain(f) is not None]
    (func,) = found
    return before, mod, func


def scheduled(func, target):
    found = GpuChain().apply(func, target).mod["main"]
    return found.with_attrs({"global_symbol": "main", "tirx.is_scheduled": True})


def plan(func, target=OPENCL):
    chain = read_chain(func)
    return plan_of([sketch(stage) for stage in chain.stages], chain.own, Limits.of(target))


def arguments(mod, func, arrays):
    """Name -> number for each operand of the only kernel."""
    (call,) = [b.value for b in mod["main"].body.blocks[0].bindings if isinstance(b.value, tvm.ir.Call)]
    given = dict(zip(mod["main"].params, arrays, strict=True))
    values = [given[arg] if arg in given else arg.value.numpy() for arg in call.args[1].fields]
    outputs = list(func.params)[len(values) :]
    blank = [np.full([int(d) for d in out.shape], 7, str(out.dtype)) for out in outputs]  # not written: it shows
    names = [param.name for param in func.params]
    return dict(zip(names, [*values, *blank], strict=True)), names[len(values) :]


CASES = {
    "one group": (cells(9, 1, 33), (1, False)),
    "one group, a sum that threads share": (cells(9, 1, 64), (1, False)),
    "few rows, a group for each": (cells(9, 3, 17), (3, False)),
    "many rows, some for each group": (cells(9, 37, 6), (37, False)),
    "a thread for each channel": (channels(9, 1, 40), (40, True)),
    "rows and channels": (channels(10, 3, 97), (291, True)),
    "one channel": (channels(9, 1, 1), (1, False)),
    "a state of several numbers for each channel": (sums(9, 1, 35), (35, True)),
}


def run_opencl(func, named, _folder):
    built = tvm.compile(tvm.IRModule({"main": scheduled(func, OPENCL)}), OPENCL)
    (kernels,) = built.mod.imports
    assert kernels.inspect_source().count("// Function: ") == 1
    held = {key: tvm.runtime.tensor(value, device_of(OPENCL)) for key, value in named.items()}
    built["main"](*held.values())
    return {key: value.numpy() for key, value in held.items()}


def run_cuda(func, named, folder):
    run_on_cpu(scheduled(func, CUDA), CUDA, named, folder)
    return named


@pytest.mark.each_value
@pytest.mark.parametrize("run_on", [run_opencl, run_cuda])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_computes_what_the_kernels_did(name, run_on, tmp_path):
    (build, *shapes), (parts, private) = CASES[name]
    before, mod, func = merged(build, *shapes)
    assert (plan(func).parts, plan(func).private) == (parts, private)
    arrays = random(*shapes)
    named, outputs = arguments(mod, func, arrays)
    found = run_on(func, named, tmp_path)
    for out, want in zip(outputs, run(before, *arrays), strict=True):
        np.testing.assert_allclose(found[out], want, rtol=1e-5, atol=1e-5)


def test_barriers_stand_between_stages_and_a_thread_by_itself_has_none():
    def source(case):
        _, _, func = merged(*case)
        return source_of(scheduled(func, CUDA), CUDA)[0]

    group, thread = source(CASES["one group"][0]), source(CASES["a thread for each channel"][0])
    assert "__syncthreads" in group and "__shared__" in group and "for (int step" in group
    assert "__syncthreads" not in thread and "__shared__" not in thread and "for (int step" in thread


def test_other_kernels_and_targets_are_left_alone():
    _, _, func = merged(*CASES["one group"][0])
    (other,) = [
        f for f in legal(lambda x: op.nn.relu(x), (4, 5)).functions.values() if isinstance(f, tvm.tirx.PrimFunc)
    ]
    assert GpuChain().apply(func, host_target()) is None
    assert GpuChain().apply(other, OPENCL) is None


def test_halves_are_kept_as_halves():
    def build(x, h):
        for step in range(9):
            h = op.tanh(op.add(op.max(h, axis=1, keepdims=True), op.multiply(at(x, step), relax.const(0.5, "float16"))))
        return h

    shapes = (((9, 1, 13), "float16"), ((1, 13), "float16"))
    _, _, func = merged(build, *shapes)
    written = GpuChain().apply(func, OPENCL).mod["main"]
    kept = [b for each in collect(written.body, tvm.s_tir.SBlock) for b in each.alloc_buffers if b.scope() == "shared"]
    assert kept and {str(b.dtype) for b in kept} == {"float16"}
