# SPDX-License-Identifier: Apache-2.0
"""texture_form: which dimensions of a tensor lie where in a texture, and its numbers with them."""

import numpy as np
import pytest

from smartmem_tvm.planner.texture_form import TEXEL, ImageLimits, texture_form

SHAPES = [(7,), (8,), (1, 8), (5, 6), (3, 7, 5), (2, 3, 5, 9), (16, 1, 3, 3)]


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_gets_its_place(shape, compact):
    tensor = np.arange(1, 1 + np.prod(shape), dtype="float32").reshape(shape)
    for texel in range(len(shape)):
        form = texture_form(shape, [], ImageLimits(), texel=texel, compact=compact)
        texture = np.full(form.shape, np.nan, "float32")
        form.fill(texture, tensor)
        for index in np.ndindex(shape):
            quad, lane = divmod(index[texel], TEXEL)
            at = [0 if axis is None else quad if axis == texel else index[axis] for axis in form.axes]
            assert texture[(*at, lane)] == tensor[index]
        padding = np.count_nonzero(texture == 0)
        assert padding == texture.size - tensor.size, "zeros behind the end, and nothing unwritten"


def test_the_largest_dimensions_share_an_image():
    """Rows of three texels would be padded to as many as the device wants."""
    form = texture_form((1024, 32, 3, 3), [], ImageLimits(), texel=0, compact=True)
    assert form.shape == (3, 3, 32, 256, 4)


def test_more_layers_than_the_device_has():
    """Where its images have too many layers in the usual order, the largest dimensions lie in them."""
    assert texture_form((1, 1, 4, 8000), [], ImageLimits(), texel=3).axes == (0, 3, 1, 2)
    found = texture_form((1, 1, 4, 8400), [], ImageLimits(), texel=3)
    assert found.shape == (1, 1, 4, 2100, TEXEL) and found.axes == (0, 1, 2, 3)
    assert texture_form((1024, 32, 3, 3), [], ImageLimits(), texel=0).shape == (3, 3, 32, 256, TEXEL)


def test_larger_than_the_device_has_in_any_order():
    assert texture_form((60, 60, 60, 8), [], ImageLimits(layers=100), texel=3) == (
        "it would have 120 layers, and images of the device at most 100"
    )
