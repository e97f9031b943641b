# SPDX-License-Identifier: Apache-2.0
"""The table of micro-kernels: instruction set, register tile, and the layout in which each needs its operands.

A product takes the first row that multiplies its type of elements and whose instructions the processor has.
docs/micro_kernels.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from ....ir import packings
from ..packed_vectors import has_dot
from ..params import CpuParams
from .accumulators import Accumulators

BFLOAT16, FLOAT, PAIRS, QUADS = "bfloat16", "float32", packings.PAIRS.name, packings.QUADS.name


@dataclass(frozen=True)
class MicroKernelEntry:
    """One micro-kernel.

    Attributes
    ----------
    name : str
    element_types : tuple of str
        Types of elements that it multiplies; empty for all types.
    runs_on : callable
        Properties of a processor -> whether it has the instructions.
    left, right : str
        The layout of the operand in memory.
    module : str
        The module of `gemm` that has its class.
    dots : callable or None
        For `FmaKernel`: ``(accumulators, left, right, packing, cpu) -> statement`` that adds the products of one step
        to the sums of a tile by a dot-product instruction, or None if that cannot read the operands. None for all
        others.
    """

    name: str
    element_types: tuple[str, ...]
    runs_on: Callable[[CpuParams], bool]
    left: str
    right: str
    module: str
    dots: Callable[..., tirx.Stmt | None] | None = None


_ANYWHERE, _PANELS = "in place, or rows", "contiguous along the columns: in place, or panels of [depth, width]"

AMX = MicroKernelEntry(
    "amx",
    (BFLOAT16,),
    lambda cpu: cpu.has_amx,
    left="[row // 16, k // 32, row % 16, k % 32]",
    right="[column // 16, k // 32, k % 32 // 2, column % 16, k % 2]",
    module="amx_kernel",
)
AMX_BYTES = MicroKernelEntry(
    "amx bytes",
    (QUADS,),
    lambda cpu: cpu.has_byte_tiles,
    left="contiguous along the depth: in place, or rows",
    right="panels of [depth, width], 16 or 32 wide",
    module="quad_tiles",
)
DOT_OF_PAIRS = MicroKernelEntry(
    "dot of pairs",
    (PAIRS,),
    lambda cpu: has_dot(PAIRS, cpu),
    _ANYWHERE,
    _PANELS,
    module="fma_kernel",
    dots=Accumulators.add_dots,
)
DOT_OF_QUADS = MicroKernelEntry(
    "dot of quads",
    (QUADS,),
    lambda cpu: has_dot(QUADS, cpu),
    _ANYWHERE,
    _PANELS,
    module="fma_kernel",
    dots=Accumulators.add_dots,
)
FMA = MicroKernelEntry("fma", (), lambda cpu: True, _ANYWHERE, _PANELS, module="fma_kernel")

MICRO_KERNELS = (AMX, AMX_BYTES, DOT_OF_QUADS, DOT_OF_PAIRS, FMA)
"""In the order in which a product looks for one; the last row multiplies every type on every processor.

Tiles of bytes are taken where `quad_plan` predicts that they are faster than vectors, which `vectors` finds.
"""


def packings_of(cpu: CpuParams) -> tuple[packings.Packing, ...]:
    """Return the packings that a processor has dot products for, in the table's order, as they are and turned."""
    names = dict.fromkeys(name for row in MICRO_KERNELS if row.dots and row.runs_on(cpu) for name in row.element_types)
    found = [each for name in names for each in packings.KNOWN if each.name == name]
    return tuple(dict.fromkeys(each for one in found for each in (one, one.turn())))


def micro_kernel(element_type: str, cpu: CpuParams) -> MicroKernelEntry:
    """Return the micro-kernel for operands whose elements are of type `element_type`, on a processor."""
    return next(row for row in MICRO_KERNELS if _takes(row, element_type, cpu))


def vectors(element_type: str, cpu: CpuParams) -> MicroKernelEntry:
    """Return the same among the micro-kernels of vector units."""
    return next(row for row in MICRO_KERNELS if row.module == FMA.module and _takes(row, element_type, cpu))


def _takes(row: MicroKernelEntry, element_type: str, cpu: CpuParams) -> bool:
    return element_type in (row.element_types or (element_type,)) and row.runs_on(cpu)
