# SPDX-License-Identifier: Apache-2.0
"""The rule for products of few rows and a weight in codes on a GPU: `gemm.coded_rows` has the source of operands."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from ....ir.half import FLOAT, HALF
from ....ir.kernel import Kernel, substitute
from ....planner.texture_form import TEXEL
from ....target import has_matrix_instructions
from ...core.coded_panels import Panels, panels_of
from ...core.contraction import Contraction, contraction_of
from ...core.decisions import decide, declined, priced
from ...core.nest import Scope
from ...core.reduction import reduction_of
from ..gemm.coded_rows import CodedRows, CodedWords
from ..gemm.product import MatmulProduct
from ..gemm.skeleton import GpuGemm
from ..launch import GpuRule
from ..machine import VECTOR
from ..sums import product_type
from .coded_tile import CodedParams, CodedTile, coded_tile, price
from .coded_tile import able as able_tile

MOST_ROWS = 8
"""Rows, at most. Chosen: from 8 rows on tensor cores multiply, and threads have registers for as many sums."""


class GpuCoded(GpuRule):
    """The rule for products of few rows whose weights are stored as integers."""

    sizes = CodedParams

    def params_of(self, target: Target) -> CodedParams:
        """Return the parameters of the target."""
        params = super().params_of(target)
        return params.copying() if has_matrix_instructions(target) else params

    def plan(self, kernel: Kernel, params: CodedParams) -> GpuGemm | None:
        """Return how a folded kernel is tiled, or None if it is no such product."""
        reduction = reduction_of(kernel)
        contraction = contraction_of(reduction) if reduction is not None else None
        if contraction is None or str(reduction.accumulator.ty.dtype) != FLOAT:
            return declined("no sum of products of two operands in float32")
        ways = ((way, _panels(way)) for way in (contraction, contraction.swapped()))
        way, panels = next(((way, panels) for way, panels in ways if panels is not None), (None, None))
        if panels is None:
            return declined("no operand is a weight in panels of codes")
        product = MatmulProduct(way)
        if product.rows > MOST_ROWS:
            return declined(f"{product.rows} rows: codes are unpacked for a tile in shared memory")
        texels = product.finishes_texels
        if texels and not _along_columns(product):
            return declined("texels of the result lie along the rows")
        return self._tiled(product, panels, texels, params)

    @staticmethod
    def _tiled(product: MatmulProduct, panels: Panels, texels: bool, params: CodedParams) -> GpuGemm | None:
        limits = params.limits
        tile = coded_tile(panels, product.rows, product.columns, params)
        if tile is None:
            return declined("no tile of the candidates is within the limits of the target")

        def able(other: CodedTile) -> bool:
            words = int(panels.words.shape[2])
            even = other.columns % VECTOR == 0 and other.words > 0 and words % other.words == 0
            even = even and (other.stages > 1) == params.copies and other.rows == product.rows
            return even and able_tile(other, limits)

        facts = {"columns": product.columns, "words": int(panels.words.shape[2]), "threads": limits.work_group}
        facts |= {"turns": panels.groups * facts["words"]}
        tile = decide("gpu_coded", tile, able, **facts)
        priced(lambda: price(tile, panels, product.columns, params))
        scope, halves = Scope(), product_type(product.contraction) == HALF and limits.half_lanes > 1
        source = CodedWords(scope, panels, tile)
        micro = CodedRows(scope, source, product.left, HALF if halves else FLOAT, limits, texels)
        return GpuGemm(scope, product, tile, source, micro)

    def emit(self, plan: GpuGemm) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


def _panels(way: Contraction) -> Panels | None:
    """Return the panels of a contraction's right operand, if each column and step reads its place in them."""
    panels = None if way.batch or not way.columns else panels_of(way.right)
    if panels is None or panels.in_word == 1 or panels.width % VECTOR:
        return None
    product = MatmulProduct(way)

    def operand(column, depth):
        return substitute(way.right, product.point(None, None, column, depth))

    return panels if panels.read_by(operand) else None


def _along_columns(product: MatmulProduct) -> bool:
    """Whether four neighbouring columns are a texel of the result, if it is in a texture, and of all that is read."""
    if product.columns % TEXEL:
        return False
    return product.result_run(TEXEL) == TEXEL
