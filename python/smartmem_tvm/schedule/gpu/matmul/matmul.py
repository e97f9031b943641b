# SPDX-License-Identifier: Apache-2.0
"""GEMM and batched GEMM on a GPU without tensor cores: register tiles over tiles of shared memory.

    each thread block (batch, row tile, column tile), in the order of `block_order`:
      sums[i, j] = 0                                       registers of a thread
      prefetch the first tiles of both operands            global memory -> registers
      for each tile of terms:
        put the prefetched tiles                           registers -> shared memory
        prefetch the next tiles                            in flight while these are multiplied
        for k in the thread's slice of the tile:
          sums[i, j] += left[k, i] * right[k, j]           two vectors per eight results, read from shared memory
      add the sums of the other slices                     shared memory
      out[f(i, j)] = finish(sums[i, j])

Folded layout operators and the prologue are evaluated where an operand is loaded, the epilogue where a sum is stored.
Nothing is padded: rows and columns past the end repeat the last one and are not stored.
"""

from __future__ import annotations

from tvm import DataType, tirx
from tvm.target import Target

from ....ir.half import HALF
from ....ir.kernel import Kernel
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ....target import Limits
from ...core.decisions import decide, declined, priced
from ...core.expressions import uses
from ...core.nest import Scope, fresh, index
from ..gemm.byte_product import QuadProduct, for_threads
from ..gemm.operand import Operand
from ..gemm.prefetched_operand import Deal, PrefetchedOperand
from ..gemm.product import MatmulProduct, product_of
from ..gemm.simt import Fragment, Simt
from ..gemm.skeleton import REDUCE_THREADS, GpuGemm
from ..gemm.staging import Prefetched
from ..launch import GpuRule, registers
from ..machine import FLOAT_BYTES, VECTOR
from ..sums import Sums
from ..vectors import vector_run
from .matmul_tile import GpuMatmulParams, GpuTile, best_gpu_tile, deepened, price


class GpuMatmul(GpuRule):
    """The rule for contractions of floats that have rows and columns.

    Parameters
    ----------
    params : GpuMatmulParams, optional
        By default those of the target.
    tile : GpuTile, optional
        By default the one that `best_gpu_tile` chooses.
    """

    sizes = GpuMatmulParams

    def __init__(self, params: GpuMatmulParams | None = None, tile: GpuTile | None = None):
        super().__init__(params)
        self.tile = tile

    def plan(self, kernel: Kernel, params: GpuMatmulParams) -> GpuGemm | None:
        """Return how a folded kernel is tiled, or None if it is no matmul, or no tile is small enough."""
        product = product_of(kernel)
        if product is None:
            return declined("no sum of products that has rows and columns")
        product = for_threads(product, params.limits)
        texels = any(map(is_texture, (*kernel.inputs, *kernel.outputs)))
        params = (params.in_texels() if texels else params).of_type(product.factor)
        extents = (product.batch, product.rows, product.columns, product.depth)
        apart = tuple(map(_apart, (product.left, product.right))) if params.limits.adreno_core else (0, 0)
        core = params.limits.adreno_core
        finished = _finished(product) if core is not None and not core.aliases else 0.0
        choosing = params.choosing(apart, finished)
        tile = self.tile or best_gpu_tile(*extents, choosing) or best_gpu_tile(*extents, params)
        if tile is None:
            return declined("no tile of the candidates is within the limits of the target")
        tile = tile if self.tile else deepened(tile, product.depth, choosing)
        limits = params.limits
        facts = dict(zip(("batch", "rows", "columns", "depth"), extents, strict=True))
        facts |= {"threads": limits.work_group, "shared": limits.shared_bytes, "texels": texels}
        tile = decide("gpu_matmul", tile, **facts)
        priced(lambda: price(tile, *extents, params))
        return register_tiled(product, tile, limits)

    def emit(self, plan: GpuGemm) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


def quads_in(func: tirx.PrimFunc, target: Target) -> QuadProduct | None:
    """Return the product in an unscheduled kernel whose terms this rule would multiply in quads; else None."""

    def question(kernel: Kernel, params: GpuMatmulParams) -> QuadProduct | None:
        product = product_of(kernel)
        made = None if product is None else for_threads(product, params.limits)
        return made if isinstance(made, QuadProduct) else None

    return GpuMatmul().ask(func, target, question)


def _apart(operand: Operand) -> int:
    return operand.apart(operand.closeness(True) >= operand.closeness(False))


def _finished(product: MatmulProduct) -> float:
    """Return the numbers that each result needs at its end for tensors of results that are read one by one.

    They are its place, and the value of each such tensor, or a whole texel of an image. Where results are stored as
    vectors, only images count whose texels lie along another axis: a texel is read for each result, and one of its
    numbers chosen. Buffers that were read one by one there did not spill (Mesa 26.2.6, Adreno 660, 2026-11-29).
    """
    i, j = fresh("i"), fresh("j")
    unknown = tirx.Var("sum", product.reduction.accumulator.ty.dtype)
    vectors = product.result_run(VECTOR) > 1

    def read(at) -> list:
        return loads(product.result(unknown, index(0), i, at).value)

    def alone(number: int, source) -> bool:
        def access(at) -> list:
            return [(source, tuple(read(at)[number].indices))]

        if not vectors:
            return True
        return is_texture(source) and vector_run(access, product.columns, {i: product.rows}, VECTOR) == 1

    found = [(number, load.source) for number, load in enumerate(read(j)) if all(uses(load, [v]) for v in (i, j))]
    own = [source for number, source in found if alone(number, source)]
    if not own:
        return 0.0
    # A whole texel comes for each number of an image, and all of them before the first result.
    numbers = sum(DataType(str(each.dtype)).itemsize * (TEXEL if is_texture(each) else 1) for each in own)
    return 1 + numbers / FLOAT_BYTES


def register_tiled(product: MatmulProduct, tile: GpuTile, limits: Limits) -> GpuGemm:
    """Return the loop nest of a product in a tile."""
    scope, factor = Scope(), product.factor
    dtype = str(product.reduction.accumulator.ty.dtype)
    results = tile.thread_rows * tile.thread_columns
    halves = factor == HALF
    lanes = limits.half_lanes if halves else 1
    sums = Sums(scope, results, factor, dtype, "sums", tile.thread_columns, lanes, limits.phone and halves, product.add)
    most = max(VECTOR, sums.lanes)
    # Neighbouring threads have neighbouring texels, so that they write a whole line of an image: it has two rows.
    texels = product.finishes_texels
    row_run = min(most, tile.thread_rows)
    column_run = min(VECTOR if texels else most, tile.thread_columns)
    deal = Deal(tile.threads_down, row_run) if texels else None
    left, right = (
        PrefetchedOperand(
            *(name, operand, size, tile.depth, tile.threads, factor, operand.most(limits), most, dealt, limits.phone)
        )
        for name, operand, size, dealt in (
            ("left", product.left, tile.rows, deal),
            ("right", product.right, tile.columns, None),
        )
    )
    left_registers = registers(tile.thread_rows, factor, "down")
    right_registers = registers(tile.thread_columns, factor, "across")
    micro = Simt(
        scope,
        tile,
        sums,
        Fragment(left, left_registers, tile.threads_down, row_run, left.deal is not None),
        Fragment(right, right_registers, tile.threads_across, column_run),
        tile.slice_depth,
        tile.unroll,
    )
    rounds = -(-product.depth // (tile.depth * tile.splits))
    whole = product.depth == rounds * tile.depth * tile.splits
    staging = Prefetched(scope, left, right, rounds, whole)
    return GpuGemm(scope, product, tile, staging, micro, min(REDUCE_THREADS, limits.work_group))
