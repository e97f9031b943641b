# SPDX-License-Identifier: Apache-2.0
"""The table of micro-kernels: which one a product gets, and what it emits."""

from importlib import import_module

import pytest

from smartmem_tvm.ir import packings
from smartmem_tvm.schedule.cpu.gemm.micro_kernels import (
    AMX,
    AMX_BYTES,
    BFLOAT16,
    DOT_OF_PAIRS,
    DOT_OF_QUADS,
    FLOAT,
    FMA,
    MICRO_KERNELS,
    PAIRS,
    QUADS,
    micro_kernel,
    packings_of,
    vectors,
)
from smartmem_tvm.schedule.cpu.params import CpuParams

PAIR_DOT, QUAD_DOT = frozenset({"avx2"}), frozenset({"avxvnni"})
"""LLVM's names of the features with dot products for vectors of eight lanes, the default of `CpuParams`."""


@pytest.mark.parametrize(("tiles", "pairs"), [(a, b) for a in (False, True) for b in (False, True)])
def test_numbers_get_the_instruction_that_the_processor_has(tiles, pairs):
    cpu = CpuParams(has_amx=tiles, features=PAIR_DOT if pairs else frozenset())
    assert micro_kernel(BFLOAT16, cpu) is (AMX if tiles else FMA)
    assert micro_kernel(PAIRS, cpu) is (DOT_OF_PAIRS if pairs else FMA)
    quads = CpuParams(features=QUAD_DOT if pairs else frozenset())
    assert micro_kernel(QUADS, quads) is (DOT_OF_QUADS if pairs else FMA)
    both = CpuParams(features=QUAD_DOT, has_byte_tiles=tiles)
    assert micro_kernel(QUADS, both) is (AMX_BYTES if tiles else DOT_OF_QUADS)
    assert vectors(QUADS, both) is DOT_OF_QUADS and vectors(BFLOAT16, cpu) is FMA
    assert micro_kernel(FLOAT, cpu) is micro_kernel("int32", cpu) is FMA


def test_products_are_asked_for_the_packings_that_the_table_has_dot_products_for():
    quads = (packings.QUADS, packings.QUADS.turn())
    assert packings_of(CpuParams()) == () and packings_of(CpuParams(has_amx=True)) == ()
    assert packings_of(CpuParams(features=PAIR_DOT)) == (packings.PAIRS,)
    assert packings_of(CpuParams(features=PAIR_DOT | QUAD_DOT)) == (*quads, packings.PAIRS)
    assert {each for row in MICRO_KERNELS if row.dots for each in row.element_types} == {
        each.name for each in packings.KNOWN
    }


def test_the_last_row_multiplies_everything_everywhere():
    assert MICRO_KERNELS[-1] is FMA and not FMA.element_types and FMA.runs_on(CpuParams())
    assert all(row.element_types for row in MICRO_KERNELS[:-1])


@pytest.mark.parametrize("row", MICRO_KERNELS, ids=lambda row: row.name)
def test_each_row_names_a_module_with_a_micro_kernel(row):
    module = import_module(f"smartmem_tvm.schedule.cpu.gemm.{row.module}")
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    assert any(hasattr(each, "tile") and hasattr(each, "sweep") for each in classes)
