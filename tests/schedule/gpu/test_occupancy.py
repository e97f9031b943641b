# SPDX-License-Identifier: Apache-2.0
"""What work-groups take: the model, the check of a schedule, and every rule for GPUs on targets of narrow limits."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir.schedule import ScheduleError

from attention_expressions import attention
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.gpu.dlight_rules import Shared, Tiled
from smartmem_tvm.schedule.gpu.machine import Processor
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuTile
from smartmem_tvm.schedule.gpu.occupancy import fits
from smartmem_tvm.schedule.gpu.window.window_tiles import ProductTile
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import Limits, device_of


def tensors(*shapes) -> list:
    return [te.placeholder(shape, name=f"p{n}") for n, shape in enumerate(shapes)]


def matmul(rows, columns, depth):
    x, w = tensors((rows, depth), (depth, columns))
    return [x, w], topi.matmul(x, w)


def conv(channels, size):
    x, w = tensors((1, channels, size, size), (channels, channels, 3, 3))
    return [x, w], topi.nn.conv2d_nchw(x, w, 1, 1, 1)


def depthwise(channels, size):
    x, w = tensors((1, channels, size, size), (channels, 1, 3, 3))
    return [x, w], topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)


def of_one(shape, make):
    (x,) = tensors(shape)
    return [x], make(x)


def layer_norm(shape):
    x, gamma, beta = tensors(shape, shape[-1:], shape[-1:])
    return [x, gamma, beta], topi.nn.layer_norm(x, gamma, beta, [len(shape) - 1])


MADE = {
    "matmul": matmul(197, 256, 96),
    "deep": matmul(49, 64, 3072),
    "vector": matmul(1, 300, 500),
    "conv": conv(32, 14),
    "depthwise": depthwise(24, 28),
    "pool": of_one((1, 8, 30, 30), lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")),
    "softmax": of_one((33, 197), topi.nn.softmax),
    "long_softmax": of_one((2, 20_000), topi.nn.softmax),
    "softmax_down": of_one((197, 300), lambda x: topi.nn.softmax(x, 0)),
    "layer_norm": layer_norm((50, 768)),
    "sum": of_one((4, 100_000), lambda x: topi.sum(x, 1)),
    "argmax": of_one((7, 1000), lambda x: topi.argmax(x, 1)),
    "attention": attention(2, 77, 77, 64, 64, False)[:2],
    "relu": of_one((70_001,), topi.nn.relu),
    "transpose": of_one((96, 40, 30), lambda x: topi.transpose(x, (2, 0, 1))),
}
RUN = ("softmax", "softmax_down", "depthwise", "relu")  # whose groups would be larger
CATCH_ALL = {"argmax"}  # no rule of ours is for pairs
NARROW = {
    "threads_64": {"max_num_threads": 64},
    "threads_128": {"max_num_threads": 128},
    "block_64": {"max_threads_per_block": 64},
    "block_128": {"max_threads_per_block": 128},
    "block_100": {"max_threads_per_block": 100},
    "memory": {"max_shared_memory_per_block": 8 * 1024},
    "both": {"max_threads_per_block": 32, "max_shared_memory_per_block": 4 * 1024},
}


def target_of(limits: dict) -> tvm.target.Target:
    return tvm.target.Target({"kind": "opencl", "max_shared_memory_per_block": 32 * 1024, **limits}, host="llvm")


def module(names: Sequence[str] = tuple(MADE)) -> tvm.IRModule:
    made = {name: te.create_prim_func([*MADE[name][0], MADE[name][1]]) for name in names}
    return tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in made.items()})


def scheduled(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    with target:
        return ScheduleKernels()(mod)


def launches(built) -> list[tuple[int, int]]:
    """(threads, bytes of local memory) of each kernel, from its OpenCL source."""
    (kernels,) = built.mod.imports
    found, widths = [], {"float": 4, "float4": 16, "int": 4, "long": 8}
    for text in kernels.inspect_source().split("// Function: ")[1:]:
        threads = prod(map(int, re.search(r"// Work group (\d+) (\d+) (\d+)", text).groups()))
        local = re.findall(r"__local (\w+) \w+\[(\d+)\]", text)
        found.append((threads, sum(widths[each] * int(count) for each, count in local)))
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.device] * name.endswith("_64")) for name in NARROW]
)
def test_no_rule_takes_more_than_the_target_has(name):
    target = target_of(NARROW[name])
    limits, mod = Limits.of(target), scheduled(module(), target)
    taken = launches(tvm.compile(mod, target))
    assert len(taken) >= len(MADE) and max(local for _, local in taken) > 0
    assert max(threads for threads, _ in taken) <= limits.work_group
    assert max(local for _, local in taken) <= limits.shared_bytes
    if name != "both":  # a thread block of one warp is too few for a tile
        assert {kernel for kernel, rule in kernel_rules(mod).items() if rule["catch_all"]} <= CATCH_ALL


@pytest.mark.device
def test_what_narrow_work_groups_compute_is_right():
    """Of a size that is no power of two, and no multiple of a warp."""
    target, mod = target_of(NARROW["block_100"]), module(RUN)
    built, plain, device = tvm.compile(scheduled(mod, target), target), tvm.compile(mod, "llvm"), device_of(target)
    random = np.random.default_rng(0)
    for name in RUN:
        inputs, output = MADE[name]
        arrays = [random.standard_normal([int(d) for d in each.shape]).astype("float32") for each in inputs]
        shape = [int(d) for d in output.shape]
        results = [tvm.runtime.tensor(np.full(shape, 7, str(output.dtype)), on) for on in (device, tvm.cpu())]
        for run, result, on in zip((built, plain), results, (device, tvm.cpu()), strict=True):
            run[name](*(tvm.runtime.tensor(array, on) for array in arrays), result)
        got, want = (result.numpy() for result in results)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max(), err_msg=name)


def test_a_tile_beyond_the_limits_is_refused():
    """As from a record that was tuned on another device; parts of a split product are added by groups as narrow."""
    x, w = tensors((64, 256), (256, 64))
    func, narrow = te.create_prim_func([x, w, topi.matmul(x, w)]), target_of(NARROW["block_64"])
    with pytest.raises(ScheduleError, match="a thread block of 256 threads, and the target has 64 at most"):
        GpuMatmul(tile=GpuTile(64, 64, 16, 4, 4)).apply(func, narrow)
    with pytest.raises(ScheduleError, match="takes 16896 bytes of shared memory, and the target has 8192"):
        GpuMatmul(tile=GpuTile(64, 64, 32, 4, 4)).apply(func, target_of(NARROW["memory"]))
    split = GpuMatmul(tile=GpuTile(32, 32, 16, 4, 4, splits=2)).apply(func, narrow).mod["main"]
    built = tvm.compile(tvm.IRModule({"main": split.with_attr("tirx.is_scheduled", True)}), narrow)
    assert [threads for threads, _ in launches(built)] == [64, 64]


@pytest.mark.parametrize(("rule", "name"), [(Shared, "argmax"), (Tiled, "matmul")])
def test_so_are_the_groups_of_tvm_s_rules(rule, name):
    func = module()[name]
    assert rule().apply(func, target_of({})) is not None
    with pytest.raises(ScheduleError, match="threads, and the target has 16 at most"):
        rule().apply(func, target_of({"max_num_threads": 16}))


TILES = [GpuTile(64, 32, 16, 4, 4), GpuTile(64, 32, 32, 4, 4, slices=4), ProductTile(64, 32, 16, 4, 4, slices=2)]


@pytest.mark.parametrize(("tile", "bytes_"), list(zip(TILES, (6656, 37888, 29696), strict=True)), ids=str)
def test_a_tile_takes_operands_and_the_sums_of_slices(tile, bytes_):
    assert tile.threads == 128 * tile.slices and tile.slice_threads == 128
    assert tile.shared_bytes == bytes_
    limits = Limits(tile.threads, bytes_, tile.values + 16)
    assert fits(tile, limits)
    for name in ("work_group", "shared_bytes", "registers"):
        assert not fits(tile, replace(limits, **{name: getattr(limits, name) - 1}))


def test_a_processor_holds_what_the_scarcest_allows():
    processor = Processor()
    assert processor.resident(32) == 32  # groups
    assert processor.resident(256) == 8  # threads
    assert processor.resident(128, 44 * 1024) == 5  # shared memory
    assert processor.resident(256, 1024, 128) == 2  # registers
