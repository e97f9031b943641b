# SPDX-License-Identifier: Apache-2.0
"""Neighbouring threads meet in the lines of an image: what kernels ask for, and that results are what they were."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

import smartmem_tvm as sm
from helpers import legalize, module, random, run
from smartmem_tvm import texture_trial
from smartmem_tvm.analysis.network_access import network_accesses
from smartmem_tvm.deploy.schedules import our_schedules
from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import default_rules
from smartmem_tvm.schedule.gpu.gemm.prefetched_operand import Deal
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuTile
from smartmem_tvm.schedule.gpu.rows import rows as rows_rule
from smartmem_tvm.schedule.gpu.rows.rows import GpuRows
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import Limits, parse_target, target_row
from texture_modules import TARGET, opencl
from texture_operators import conv, dense, op, weight

PHONE = parse_target("adreno-740")
MOST = 0.55  # of the lines in float32 that halves may ask for


def block(rows, columns, hidden):
    """Of a transformer: a norm, two products, and what is added to them."""

    def build(x):
        x = dense(x, columns, columns)
        for seed in (3, 5):
            y = op.nn.layer_norm(x, weight(columns, terms=1), weight(columns, terms=1), axes=[-1])
            y = op.nn.gelu(op.add(dense(y, columns, hidden, seed), weight(hidden, terms=1)))
            x = op.add(x, op.add(dense(y, hidden, columns, seed + 1), weight(columns, terms=1)))
        return dense(x, columns, columns)

    return build, (1, rows, columns)


def slides(size, channels, window, **attrs):
    """Two depthwise convolutions between products."""

    def build(x):
        x = conv(x, channels, channels, 1)
        for _ in range(2):
            x = op.nn.relu(conv(x, channels, channels, window, groups=channels, **attrs))
        return conv(x, channels, channels, 1)

    return build, (1, channels, *size)


@pytest.mark.device
@pytest.mark.parametrize(
    ("case", "rules"),
    [(block(197, 192, 384), {"GpuMatmul", "GpuRows"}), (slides((28, 28), 64, 7), {"WindowSlide"})],
    ids=["products", "windows"],
)
def test_halves_ask_for_half_as_many_lines(case, rules, monkeypatch):
    """Of images: no times are known, or some tensors would stay in buffers in one precision and not in the other."""
    monkeypatch.setattr(texture_trial, "named_device", lambda target: None)
    build, shape = case
    mod, row = module(build, shape), target_row(PHONE)
    lines = {}
    for precision in ("float32", "half"):
        scheduled = our_schedules(mod, PHONE, sm.Options(precision=precision))
        by = {name: each["name"] for name, each in kernel_rules(scheduled).items()}
        kernels = [each for each in network_accesses(scheduled, row) if by[each.name] in rules]
        assert rules == {by[each.name] for each in kernels}
        lines[precision] = sum(each.accesses.lines for each in kernels)
    assert lines["half"] <= MOST * lines["float32"]


@pytest.mark.parametrize("deal", [Deal(8, 4), Deal(16, 8), Deal(7, 4), Deal(4, 1), Deal(1, 4)], ids=str)
@pytest.mark.parametrize("together", [1, 2, 4])
def test_lanes_are_dealt(deal, together):
    """Each lane has a place, a thread's lie side by side, and what is fetched in turn is put side by side."""
    simplify, lanes = tvm.sym.Analyzer().simplify, 2 * deal.threads * deal.run
    place = [int(deal.place(tvm.tirx.const(n, "int32"), simplify)) for n in range(lanes)]
    fetched = [int(deal.fetched(tvm.tirx.const(n, "int32"), together, simplify)) for n in range(lanes)]
    assert sorted(place) == sorted(fetched) == list(range(lanes))
    for thread in range(deal.threads):
        mine = [place[turn * deal.threads + thread] for turn in range(2 * deal.run)]
        first = thread * deal.run
        assert mine[: deal.run] == list(range(first, first + deal.run))
    near = np.gcd(deal.threads, together)
    assert all(fetched[n + near - 1] - fetched[n] == near - 1 for n in range(0, lanes, near))
    group = near * deal.run
    for n in range(0, lanes, group):
        assert sorted(place[lane] for lane in fetched[n : n + group]) == list(range(n, n + group))


TILES = [
    GpuTile(64, 64, 16, 8, 8),
    GpuTile(128, 64, 16, 8, 4),
    GpuTile(56, 64, 16, 8, 4),
    GpuTile(32, 32, 16, 4, 4, slices=2),
    GpuTile(16, 64, 32, 4, 4, splits=2),
]


def scheduled_by(rule, mod):
    with TARGET:
        return ScheduleKernels([rule, *default_rules()])(run_phases(mod, graph_phases(TARGET), Options()))


def check(case, rule):
    build, shape = case
    mod, arrays = module(build, shape), random(shape)
    scheduled = scheduled_by(rule, mod)
    device = opencl()
    machine = texture_machine(build_textures(scheduled, TARGET), device)
    found = machine["main"](tvm.runtime.tensor(arrays[0], device)).numpy()
    (expected,) = run(legalize(mod), *arrays)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert rule.name in {by["name"] for by in kernel_rules(scheduled).values()}


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("case", [block(131, 36, 68), block(2, 20, 12), block(7, 44, 4)], ids=["131", "2", "7"])
def test_tiles_of_products_of_images(case, tile):
    check(case, GpuMatmul(tile=tile))


@pytest.mark.device
@pytest.mark.parametrize("rows", [5, 131])
def test_rows_side_by_side(rows, monkeypatch):
    """A group of threads takes neighbouring rows of an image, the last one fewer of them."""
    plans = []
    monkeypatch.setattr(rows_rule, "decide", lambda _, made, **facts: plans.append(made) or made)
    check(block(rows, 36, 68), GpuRows(GpuParams.of(replace(Limits.of(TARGET), processors=1))))
    placed = plans[-1]  # those before are trials
    assert placed.across and placed.lanes == 2 and placed.vector == 4


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize("window", [3, 7, (1, 5), (5, 1)], ids=str)
@pytest.mark.parametrize("attrs", [{}, {"strides": 2}, {"dilation": 2}], ids=str)
def test_windows_slide_across_the_lines(window, attrs):
    build, shape = slides((20, 18), 8, window, **attrs)
    mod, arrays = module(build, shape), random(shape)
    (found,) = sm.compile(mod, TARGET).run(*arrays)
    (expected,) = run(legalize(mod), *arrays)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
