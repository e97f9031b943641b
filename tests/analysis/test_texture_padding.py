# SPDX-License-Identifier: Apache-2.0
"""Kernels that write padded textures: what is stored where, and that nothing is read outside of a tensor."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

from helpers import constant, only_node
from smartmem_tvm.ir.index_map import evaluate, grid
from smartmem_tvm.ir.kernel import shape_of
from smartmem_tvm.ir.storage import textured
from smartmem_tvm.planner.storage_order import Demand
from smartmem_tvm.planner.texture_form import ImageLimits, TextureForm, texture_form

op, nn = relax.op, relax.op.nn
FORM = TextureForm(1, (0, 1, 2, 3), (1, 2, 6, 7, 4))  # five channels
CASES = {
    "conv2d": lambda x: nn.conv2d(x, constant(5, 3, 1, 1)),
    "depthwise conv2d": lambda x: nn.conv2d(x, constant(5, 1, 3, 3), padding=1, groups=5),
    "flip": lambda x: op.flip(x, 1),
    "element by element": lambda x: x * constant(5, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_padding_reads_nothing_outside_of_a_tensor(name):
    kernel = only_node(CASES[name], (1, 3 if name == "conv2d" else 5, 6, 7)).kernel
    made, new = textured(kernel, kernel.outputs[0], FORM, "global.texture")
    assert tuple(shape_of(new)) == FORM.shape
    clipped = 0
    for stage in made.stages:
        space = grid(list(stage.extents), stage.extents)
        for load in stage.loads:
            clips: list = []
            for index, extent in zip(load.indices, shape_of(load.source), strict=True):
                tvm_ffi.structural_walk(index, ((tirx.Min, tirx.Max), clips.append))
                if not any("pad" in each.name for each in (load.source, stage.outputs[0])):
                    values = evaluate(index, space)
                    assert np.min(values) >= 0 and np.max(values) < extent
            clipped += bool(clips)
    assert clipped


@pytest.mark.parametrize("padded", [True, False])
def test_a_dimension_may_leave_half_of_its_texels_empty(padded):
    limits = ImageLimits()
    found = {n: texture_form((n, 1), [], limits, padded) for n in range(1, 9)}
    filled = {n for n, form in found.items() if isinstance(form, TextureForm)}
    assert filled == ({2, 3, 4, 5, 6, 7, 8} if padded else {4, 8})
    assert found[8].shape == (2, 1, 4)


def test_texels_lie_along_the_channels_of_a_group():
    """Its window slides along rows and columns; channels that half fill the last texel are still the better texels."""
    demand = Demand(frozenset({1, 2, 3}), 1, "conv", frozenset({2, 3}))
    assert texture_form((1, 8, 12, 12), [demand], ImageLimits()).texel == 1
    assert texture_form((1, 6, 12, 12), [demand], ImageLimits()).texel == 1


def test_a_dimension_that_fills_its_texels_comes_first():
    assert texture_form((5, 8, 7), [], ImageLimits()).texel == 1
    assert texture_form((5, 9, 7), [], ImageLimits()).shape == (5, 2, 9, 4)
