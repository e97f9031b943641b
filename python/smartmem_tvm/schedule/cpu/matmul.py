# SPDX-License-Identifier: Apache-2.0
"""The rule for contractions on CPUs: matmul, batched matmul, convolution. `gemm.contraction_nest` has the loop nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx

from ...ir.kernel import Kernel
from ...ir.packings import PAIRS, Packing
from ...ir.pairs import BYTES
from ..core.contraction import contraction_of
from ..core.decisions import decide, declined, given_value, noted, priced
from ..core.reduction import reduction_of
from ..core.words import as_bytes, with_words
from .gemm.contraction_nest import MatmulNest
from .gemm.micro_kernels import AMX_BYTES, FLOAT, vectors
from .gemm.quad_tiles import QuadNest
from .matmul_plan import GivenPlan, MatmulPlan
from .params import FEW_REGISTERS, CpuParams
from .quad_plan import QuadPlan
from .rule import CpuRule


class Matmul(CpuRule):
    """The rule for contractions that have rows and columns."""

    def emit(self, plan: MatmulPlan) -> tirx.Stmt:
        """Return the loop nest."""
        nest = QuadNest(plan) if isinstance(plan, QuadPlan) else MatmulNest(plan)
        return as_bytes(nest.kernel(), plan.contraction.words)

    @staticmethod
    def plan(kernel: Kernel, params: CpuParams, constants: Sequence = ()) -> MatmulPlan | None:
        """Return the plan of a prepared kernel, or None if it is no contraction.

        Parameters
        ----------
        constants : sequence of buffer
            Inputs whose values are known at compile time, so that they can be packed then.
        """
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
        if contraction is None:
            return declined("no sum of products of two operands" if reduction else "not one reduction")
        if not (contraction.rows or contraction.columns):
            return declined("its results share no operand: there are neither rows nor columns")
        params, contraction = with_products(params, contraction.packing), with_words(contraction)
        ways = [MatmulPlan(way, params, tuple(constants)) for way in (contraction, contraction.swapped())]
        given = given_value("matmul", "swapped")
        facts = {**ways[0].facts, "left_constant": int(ways[1].right_constant)}
        able = [(way, swapped) for swapped, way in enumerate(ways) if given in (None, swapped)]
        able = [(way, swapped) for way, swapped in able if not _takes_bytes_apart(way)] or able
        tiles = {swapped: tiled for way, swapped in able if (tiled := QuadPlan.of(way)) is not None}
        able += [(tiled, swapped) for swapped, tiled in tiles.items()]
        facts |= {"tiled": 1} if tiles else {}
        best, swapped = min(able, key=lambda way: way[0].price.cycles)
        vector = not (contraction.rows and contraction.columns)
        if vector and given is None and (best.left_packed or best.right_packed):
            return declined("a vector times a matrix, each element of which is read once, and would be copied first")
        choice = decide("matmul", best.choice(bool(swapped)), **facts)
        own = ways[choice.swapped]
        tiled = tiles[choice.swapped].given(choice) if choice.tiles and choice.swapped in tiles else None
        elements = FLOAT if contraction.packing is None else contraction.packing.name
        noted("micro_kernel", name=(AMX_BYTES if tiled is not None else vectors(elements, params)).name)
        if tiled is not None:
            priced(lambda: tiled.price)
            return tiled
        plan = GivenPlan(own, choice)
        priced(lambda: (own if choice == own.choice(choice.swapped) else plan).price)
        return plan


def _takes_bytes_apart(way: MatmulPlan) -> bool:
    """Whether each step would make a pair of 16 bits from two bytes of the left operand.

    It takes six instructions for each row; a vector of the right operand takes one. A matmul of 784 rows, 576 deep and
    64 wide took 769 us with its weights on the left, and takes 433 (a thread of an AMD EPYC with AVX2, 2026-11-29).
    """
    packing = way.contraction.packing
    return packing is not None and packing.numbers == PAIRS.numbers and str(way.contraction.left.ty.dtype) == BYTES


def with_products(params: CpuParams, packing: Packing | None) -> CpuParams:
    """Return a processor's parameters for a product whose steps take registers of their own.

    Dot products of pairs are added to the sums by another instruction, and wait for it in registers. With tiles as
    large as those of floats LLVM spills sums where steps are unrolled: a convolution of 64 x 28 x 28 by 64 filters of
    3 x 3 took 0.93 ms, and with two registers kept free 0.62 (one thread of an AMD EPYC with AVX2, 2026-11-28).
    """
    if packing is None or packing.numbers != PAIRS.numbers or params.registers > FEW_REGISTERS:
        return params
    return replace(params, registers=params.registers - 2)


def loop_orders(kernel: Kernel) -> tuple[dict[str, int], ...]:
    """Return the loop orders of a matmul as decisions: the rule's own; the two orientations of rows and columns."""
    reduction = reduction_of(kernel)
    contraction = contraction_of(reduction, pairs=True) if reduction is not None else None
    if contraction is None or not contraction.rows or not contraction.columns:
        return ({},)
    return ({}, {"matmul.swapped": 0}, {"matmul.swapped": 1})
