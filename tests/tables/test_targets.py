# SPDX-License-Identifier: Apache-2.0
"""Rows of devices: complete, plausible, and honest about what is an estimate."""

from dataclasses import fields

import pytest

from smartmem_tvm.tables.targets import BY_KIND, TARGETS, Row, row_of

ADRENOS = ["adreno-610", "adreno-618", "adreno-660", "adreno-730", "adreno-740", "adreno-750", "adreno-830"]
PHONES = [*ADRENOS, "adreno-650", "adreno-540", "mali-g57", "mali-g76"]
ROWS = pytest.mark.parametrize("row", TARGETS.values(), ids=lambda row: row.name)


def test_the_devices():
    assert set(TARGETS) == {*PHONES, "opencl", "h100", "cpu"}
    assert all(TARGETS[name].textures and TARGETS[name].half and TARGETS[name].host for name in PHONES)


def test_the_figures_of_the_paper():
    row = TARGETS["adreno-740"]  # SmartMem 4.6
    assert (row.bandwidth, row.texture_bandwidth, row.peak) == (55e9, 511e9, 2.0e12)
    assert not {"bandwidth", "texture_bandwidth", "peak"} & row.estimates


@ROWS
def test_estimates_are_fields(row):
    assert row.estimates <= {field.name for field in fields(Row)} - {"name", "kind", "estimates"}


@ROWS
def test_caches_hold_whole_sets(row):
    for size, ways in (
        (row.buffer_l1_bytes, row.l1_ways),
        (row.texture_l1_bytes, row.l1_ways),
        (row.l2_bytes, row.l2_ways),
    ):
        assert size % (row.line_bytes * ways) == 0
    assert row.line_bytes % row.sector_bytes == 0
    assert row.l2_bytes > max(row.buffer_l1_bytes, row.texture_l1_bytes)


@ROWS
def test_images_are_there_or_not(row):
    sizes = (row.image_width, row.image_height, row.image_layers, row.texture_l1_bytes, row.texture_bandwidth)
    assert all(sizes) == row.textures == bool(row.texels) and any(sizes) == row.textures
    assert row.image_pitch & (row.image_pitch - 1) == 0  # OpenCL: a power of two, or none
    if row.textures:
        assert row.line_bytes % (row.texture_rows * 16) == 0  # texels of four float32 values
        assert row.texture_bandwidth > row.bandwidth


def test_rows_are_found_by_model_then_by_kind():
    assert row_of("opencl", "mali-g57").name == "mali-g57"
    assert row_of("opencl", "unheard of").name == row_of("opencl").name == "opencl"
    assert row_of("cuda").name == "h100" and row_of("llvm").name == "cpu" and row_of("hexagon") is None
    assert all(row.kind == kind for kind, row in BY_KIND.items())
