# SPDX-License-Identifier: Apache-2.0
"""Windows that read and write textures: other tiles than those chosen, and how often a texel is read."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from helpers import legalize, module, random, run
from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import default_rules
from smartmem_tvm.schedule.gpu.window.window import GpuWindowParams, TexelReduction, WindowProduct, WindowSlide
from smartmem_tvm.schedule.gpu.window.window_tiles import ProductTile, SlideTile, product_tile, slide_tile
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits
from texture_modules import TARGET, body, opencl, sources

op, nn = relax.op, relax.op.nn
CHANNELS = 16
SHAPE = (1, CHANNELS, 11, 12)


def weight(*shape):
    return relax.const(random(shape, seed=7)[0] / np.float32(np.sqrt(np.prod(shape[1:]))))


def conv(x, size=3, groups=1):
    return nn.conv2d(x, weight(CHANNELS, CHANNELS // groups, size, size), padding=size // 2, groups=groups)


def between(middle):
    return module(lambda x: conv(middle(conv(x, 1)), 1), SHAPE)


def placed(mod, fuse_attention=True):
    """The kernels of a module with textures between them."""
    with TARGET:
        return run_phases(mod, graph_phases(TARGET), Options(fuse_attention=fuse_attention))


def check(middle, rule, fuse_attention=True):
    """`middle` between two convolutions, its kernels scheduled by `rule` if that takes them; the sources by name."""
    mod, arrays = between(middle), random(SHAPE)
    with TARGET:
        scheduled = ScheduleKernels([rule, *default_rules()])(placed(mod, fuse_attention))
    executable = build_textures(scheduled, TARGET)
    device = opencl()
    found = texture_machine(executable, device)["main"](tvm.runtime.tensor(arrays[0], device)).numpy()
    (expected,) = run(legalize(mod), *arrays)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    made = [name for name, by in kernel_rules(scheduled).items() if by["name"] == rule.name]
    assert made
    return [body(sources(executable)[name]) for name in made]


PRODUCTS = [
    ProductTile(16, 32, 12, 2, 4),
    ProductTile(32, 32, 36, 4, 4, 4),
    ProductTile(64, 64, 8, 8, 8, 8),
    ProductTile(16, 16, 9, 2, 4, 2),  # no whole texels in a step
]


@pytest.mark.device
@pytest.mark.parametrize("tile", PRODUCTS, ids=str)
def test_tiles_of_a_product(tile):
    (code,) = check(conv, WindowProduct(tile=tile))
    assert code.count("write_imagef") == tile.thread_rows * tile.thread_columns // (4 * tile.slices) or tile.slices > 1
    single = "select((texel" in code  # a number of a texel that was read, chosen by the thread
    assert single == (tile.depth % 4 != 0)


def test_a_product_whose_threads_have_no_whole_texels_is_refused():
    kernels = [func for func in placed(between(conv)).functions.values() if isinstance(func, tirx.PrimFunc)]

    def taken(tile):
        return sum(WindowProduct(tile=tile).apply(func, TARGET) is not None for func in kernels)

    assert (taken(ProductTile(16, 32, 12, 2, 4)), taken(ProductTile(16, 32, 12, 2, 2))) == (1, 0)


@pytest.mark.device
@pytest.mark.parametrize("groups", [CHANNELS, 4, 2])
@pytest.mark.parametrize("tile", [SlideTile(1, 1, 1, 1, 32), SlideTile(4, 1, 2, 9, 64), SlideTile(3, 2, 1, 36, 128)])
def test_tiles_of_a_slide(tile, groups):
    check(lambda x: conv(x, groups=groups), WindowSlide(tile=tile))


def test_a_depthwise_window_reads_each_texel_once():
    """Four places of a 3x3 window, for four channels: 6 texels in each of 3 rows, and 9 of weights."""
    (code,) = check(lambda x: conv(x, groups=CHANNELS), WindowSlide(tile=SlideTile(4, 1, 1, 9, 32)))
    assert code.count("READ_IMAGEF(") == 18 + 9
    assert code.count("write_imagef(") == 4


def test_channels_of_a_group_are_read_as_texels():
    """At each place of the window four channels of the input, and for each of them the weights of four results."""
    (code,) = check(lambda x: conv(x, groups=4), WindowSlide(tile=SlideTile(1, 1, 1, 36, 32)))
    assert code.count("READ_IMAGEF(") == 9 + 9 * 4
    assert code.count("write_imagef(") == 1


def test_narrow_products_of_a_phone_have_a_thread_for_each_texel():
    """Groups of four channels: the tile of a GEMM would have 28 of 32 columns and 12 of 16 terms for nothing."""
    limits = replace(Limits.of(TARGET), device=TARGETS["adreno-740"])
    (code,) = check(lambda x: conv(x, 1, 4), TexelReduction(GpuWindowParams(limits)))
    assert "barrier" not in code and "__local" not in code


def test_a_reduction_to_texels():
    (code,) = check(lambda x: op.mean(x, [3], keepdims=True), TexelReduction(), fuse_attention=False)
    assert code.count("write_imagef(") == 1


def test_chosen_tiles_have_whole_texels():
    params = GpuWindowParams().in_texels()
    for extents in ((1, 49, 64, 576), (4, 3136, 32, 144), (1, 12544, 96, 48), (1, 7, 16, 4608)):
        tile = product_tile(*extents, 36, params)
        assert tile.thread_columns % 4 == 0 and tile.thread_rows * tile.thread_columns % (4 * tile.slices) == 0
    for across in (7, 14, 56, 112):
        assert 4 * slide_tile(across, across, 1, 96 * across**2, GpuWindowParams(), 4).across <= 16
