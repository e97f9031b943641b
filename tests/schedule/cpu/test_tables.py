# SPDX-License-Identifier: Apache-2.0
"""Places and weights of resized pictures come from tables; the results are numpy's."""

import numpy as np
import pytest
from tvm import te, tirx


def single(value):
    return tirx.const(value, "float32")


def place(at, scale: float, most: int):
    """Where between the places of the source a result is, and the two that are its neighbours."""
    exact = (at.astype("float32") + single(0.5)) * single(scale) - single(0.5)
    low = te.floor(exact).astype("int64")
    clamped = [tirx.max(tirx.min(low + step, tirx.const(most, "int64")), tirx.const(0, "int64")) for step in (0, 1)]
    return exact - te.floor(exact), clamped


def places(size: int, scale: float, most: int):
    exact = (np.arange(size, dtype="float32") + np.float32(0.5)) * np.float32(scale) - np.float32(0.5)
    low = np.floor(exact).astype(int)
    return exact - np.floor(exact), np.clip(low, 0, most), np.clip(low + 1, 0, most)


def resized(shape, size):
    """A picture between the four nearest places of another."""
    planes, high, wide = shape
    x = te.placeholder(shape, name="x")

    def value(c, i, j):
        down, lines = place(i, high / size[0], high - 1)
        across, columns = place(j, wide / size[1], wide - 1)
        line = [x[c, at, columns[0]] * (single(1) - across) + x[c, at, columns[1]] * across for at in lines]
        return line[0] * (single(1) - down) + line[1] * down

    def reference(x):
        down, top, bottom = places(size[0], high / size[0], high - 1)
        across, left, right = places(size[1], wide / size[1], wide - 1)
        lines = x[:, top] * (1 - down)[:, None] + x[:, bottom] * down[:, None]
        return lines[:, :, left] * (1 - across) + lines[:, :, right] * across

    return [x], te.compute((planes, *size), value), reference


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 14, 28), (21, 4, 9), (2, 1, 1)])
@pytest.mark.parametrize("size", [(14, 15), (56, 56), (5, 3), (64, 300)])
def test_resized_pictures(check, shape, size):
    func = check(*resized(shape, size), "Elementwise")
    assert ("table[" in func.script()) == (shape[2] > 1)  # of one column all places are the same


def test_the_innermost_loop_rounds_nothing(check):
    text = check(*resized((2, 8, 8), (16, 16)), "Elementwise").script()
    loop = next(line for line in text.splitlines() if "resize" not in line and line.lstrip().startswith("compute["))
    for part in loop.split("T.floor(")[1:]:
        assert "j" not in part.partition(")")[0]


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_table_that_is_hardly_read_again_is_not_made(check, rows):
    x = te.placeholder((rows, 20), name="x")

    def value(i, j):
        return x[i, te.floor(j.astype("float32") * single(0.5)).astype("int64")]

    y = te.compute((rows, 40), value)
    func = check([x], y, lambda x: x[:, np.arange(40) // 2], "Elementwise")
    assert ("table" in func.script()) == (rows == 4)


def test_what_depends_on_two_iterators_is_found_for_each(check):
    """A sheared picture: the place of a column is another one in each line."""
    x = te.placeholder((6, 30), name="x")

    def value(i, j):
        at = te.floor((i + j).astype("float32") * single(0.5)).astype("int64")
        return x[i, at]

    def reference(x):
        i, j = np.ogrid[:6, :40]
        return x[i, (i + j) // 2]

    func = check([x], te.compute((6, 40), value), reference, "Elementwise")
    assert "table" not in func.script()
