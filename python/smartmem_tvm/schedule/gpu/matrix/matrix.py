# SPDX-License-Identifier: Apache-2.0
"""GEMM of 8-bit, 16-bit or tf32 factors on tensor cores (matrix instructions): warp tiles over stages of shared memory.

    each thread block (batch, row tile, column tile), in the order of `block_order`:
      sums[i, j] = 0                                       fragments, float32, or int32 of bytes
      start the first stages                               global -> shared memory, asynchronous copies
      for each tile of terms:
        wait for its stage; barrier
        start the stage that comes `stages - 1` later
        for each 32 bytes of terms of the warp's slice:
          load fragments of both operands                  shared memory -> registers
          sums += left @ right                             one instruction per 16 x 8 results
      16 rows of each warp at a time:
        put sums                                           registers -> shared memory
        out[f(i, j)] = finish(sums of all slices)          vectors along the columns

`factors.factors_of` chooses the type of the factors: bytes, float16, bfloat16, or tf32 (float32 numbers of which the
instruction reads 19 bits). Folded layout operators become part of the source addresses of copies; an operand with
arithmetic passes through registers. The epilogue is evaluated in float32 where results are stored, and rounded once.
"""

from __future__ import annotations

from dataclasses import fields, replace

from tvm import tirx
from tvm.target import Target

from ....ir.kernel import FACTORS, Kernel
from ....ir.texels import is_texture
from ....target import is_cuda
from ...core.decisions import decide, declined, priced
from ...core.nest import Scope, index
from ..gemm import ptx
from ..gemm.mma import Mma, Wgmma, elements_per_sum
from ..gemm.product import MatmulProduct, product_of
from ..gemm.skeleton import GpuGemm
from ..gemm.staged_operand import StagedOperand, goes_by_itself, lies_along_depth
from ..gemm.staging import Pipelined
from ..launch import GpuRule
from .factors import Factors, factors_of
from .matrix_tile import MatrixParams, MatrixTile, Shape, best_matrix_tile, fits, price
from .widened import widened

LEAST = 8  # least rows and columns; chosen: with fewer, most results of an instruction are thrown away


class GpuMatrix(GpuRule):
    """The rule for contractions of short numbers on GPUs with matrix instructions."""

    needs = "an NVIDIA GPU of compute capability 8.0 or more"

    def __init__(self, params=None, tile: MatrixTile | None = None):
        super().__init__(params)
        self.tile = tile

    def runs_on(self, target) -> bool:
        """Whether the target is an NVIDIA GPU of compute capability 8.0 or more."""
        return is_cuda(target) and MatrixParams.of(target) is not None

    def params_of(self, target) -> MatrixParams:
        """Return the parameters of the target."""
        return MatrixParams.of(target)

    def params_for(self, func: tirx.PrimFunc, target: Target) -> MatrixParams:
        """Return the parameters for a kernel: its attribute ``smartmem.factors`` names the type to round factors to."""
        params, given = super().params_for(func, target), (func.attrs or {}).get(FACTORS)
        return params if given is None else replace(params, rounds_to=str(given))

    def plan(self, kernel: Kernel, params: MatrixParams) -> GpuGemm | None:
        """Return how a folded kernel is tiled; None if it is no product of 16-bit or tf32 factors, or no tile fits."""
        found = multiplied(kernel, params)
        if found is None:
            return None
        product, factors = found
        sides = (factors.left, factors.right)
        params = params.multiplying(factors.element, not all(map(lies_along_depth, sides)))
        held = [not goes_by_itself(each, factors.element) for each in sides]
        shape = Shape(product.batch, product.rows, product.columns, product.depth, *held)
        tile = self.tile or best_matrix_tile(shape, params)
        if tile is None or (tile.group and not params.warp_groups):
            return declined("no tile of the candidates is within the limits of the target")
        facts = {each.name: int(getattr(shape, each.name)) for each in fields(shape)}
        facts |= {"bytes": factors.element.bytes, "groups": int(params.warp_groups)}
        tile = decide("gpu_matrix", tile, lambda other: fits(other, shape, params), **facts)
        priced(lambda: price(tile, shape, params))
        return on_tensor_cores(product, factors, tile)

    def emit(self, plan: GpuGemm) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


def multiplied(kernel: Kernel, params: MatrixParams, least: int = LEAST) -> tuple[FinishedInFloat, Factors] | None:
    """Return the product in a folded kernel and its factors; None if matrix instructions do not take it.

    Parameters
    ----------
    least : int
        Least rows and columns of the product.
    """
    product = product_of(kernel)
    if product is None:
        return declined("no sum of products that has rows and columns")
    factors = factors_of(product, params.rounds_to)
    if factors is None:
        return declined("its factors are no numbers that matrix instructions multiply: bytes, float16, bfloat16, tf32")
    if any(map(is_texture, (*kernel.inputs, *kernel.outputs))):
        return declined("it reads or writes textures")
    if min(product.rows, product.columns) < least:
        return declined(f"{product.rows} rows and {product.columns} columns: below {least} an instruction is empty")
    return FinishedInFloat(product.contraction), factors


class FinishedInFloat(MatmulProduct):
    """A product whose epilogue is computed in float32 and rounded to 16 bits only where it is stored."""

    def result(self, value, batch, row, column) -> tirx.Stmt:
        """Store the finished result of a point."""
        stored = super().result(value, batch, row, column)
        dtype = str(stored.buffer.ty.dtype)
        finished = widened(stored.value) if dtype in ptx.SHORT else stored.value
        return tirx.BufferStore(stored.buffer, finished.astype(dtype), stored.indices)


def on_tensor_cores(product: MatmulProduct, factors: Factors, tile: MatrixTile) -> GpuGemm:
    """Return the loop nest of a product in a tile."""
    scope, element = Scope(), factors.element
    size = (tile.depth, tile.threads, tile.stages)
    left = StagedOperand("left", factors.left, element, tile.rows, *size)
    right = StagedOperand("right", factors.right, element, tile.columns, *size)
    memory = left.buffer = right.buffer = _memory(tile, element, left, right)
    right.start_at = tile.stages * left.elements
    micro = (Wgmma if tile.group else Mma)(scope, tile, left, right, element, memory)
    rounds = -(-product.depth // (tile.depth * tile.splits))
    whole = product.depth == rounds * tile.depth * tile.splits
    staging = Pipelined(scope, left, right, memory, rounds, whole, tile.stages, micro.asynchronous)
    return GpuGemm(scope, product, tile, staging, micro)


def _memory(tile: MatrixTile, element: ptx.Element, left: StagedOperand, right: StagedOperand):
    """Declare the shared memory of a thread block: for the stages of both operands, later for sums."""
    stages = tile.stages * (left.elements + right.elements)
    results = elements_per_sum(element) * tile.result_rows * tile.result_pitch
    # The type is part of the name: kernels of one program may share a name of dynamic shared memory only if they
    # share its type.
    name, size = f"stages_{element.dtype if element.terms_innermost else element.name}", [index(max(stages, results))]
    return tirx.decl_buffer(size, element.dtype, name, scope="shared.dyn", layout=None)
