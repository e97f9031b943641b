# SPDX-License-Identifier: Apache-2.0
"""The rule for products of few rows and a matrix of numbers on CUDA: `gemm.read_rows` has the source of operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm_ffi
from tvm import DataType, tirx
from tvm.target import Target

from ....ir.half import FLOAT, HALF, RANGES
from ....ir.kernel import CONSTANTS, Kernel
from ....ir.walk import loads
from ....target import has_matrix_instructions, launches_early
from ...core.contraction import Contraction, contraction_of
from ...core.decisions import asking, decide, declined, priced
from ...core.expressions import uses
from ...core.nest import Scope, fresh, index
from ...core.reduction import reduction_of
from ..gemm.operand import Operand
from ..gemm.product import MatmulProduct
from ..gemm.read_rows import ReadRows, ReadWords
from ..gemm.row_statistic import RowStatistic, Statistic, without_statistic
from ..gemm.skeleton import GpuGemm
from ..launch import GpuRule
from ..sums import product_type
from .coded import MOST_ROWS
from .few_tile import VECTOR_BYTES, Few, FewParams, able, few_tile, price

# Numbers that are loaded for one of the left operand, at most. Chosen: a turned head of queries loads seven, four of
# them places; threads compute it for each of their vectors.
_MOST_READ = 8
_GAIN = 1.1  # times the price of a turned matrix from which on it is turned. Chosen: turning takes time once
_LEAST_BYTES = 8  # of a vector. Chosen: with fewer on their way, a thread waits more than it reads


@dataclass(frozen=True, eq=False)
class _Found:
    """The products of a kernel, and their right operands as `_stored` has them; the last has the end of the result."""

    products: tuple[MatmulProduct, ...]
    rights: tuple[Operand, ...]
    casts: tuple[str, ...]
    few: Few
    statistic: Statistic | None = None


class GpuFewRows(GpuRule):
    """The rule for products of few rows, which take as long as their matrix takes from memory.

    Eight rows of float16 are for tensor cores: 10.4 us instead of 14.4 us on an H200 (2048 x 8192, 2026-11-29,
    `python benchmarks/few_rows.py times`).
    """

    sizes = FewParams
    needs = "an NVIDIA GPU of compute capability 8.0 or more"

    def runs_on(self, target: Target) -> bool:
        """Whether the target has asynchronous copies and shuffles."""
        return has_matrix_instructions(target)

    def params_for(self, func: tirx.PrimFunc, target: Target) -> FewParams:
        """Return the parameters of the target, and which arguments are weights where kernels are launched early."""
        given = (func.attrs or {}).get(CONSTANTS) if launches_early(target) else None
        return replace(super().params_for(func, target), weights=frozenset(map(int, given or ())))

    def plan(self, kernel: Kernel, params: FewParams) -> GpuGemm | None:
        """Return how a folded kernel is tiled, or None if it is no such product."""
        limits = params.limits
        found = _found(kernel)
        if found is None:
            return None
        few, products = found.few, found.products
        tile = few_tile(few, params)
        if tile is None:
            return declined("no tile of the candidates is within the limits of the target")
        facts = {"columns": few.columns, "units": few.depth // tile.unit, "vector": few.vector, "along": few.along}
        facts |= {"threads": limits.work_group}
        tile = decide("gpu_few_rows", tile, lambda other: able(other, few, limits), **facts)
        priced(lambda: price(tile, few, params))
        scope, last = Scope(), products[-1]
        source = ReadWords(scope, last.left, found.rights, found.casts, tile, last.left.most(limits))
        source.early = _are_weights(found, kernel, params)
        if found.statistic is not None:
            source.with_statistic(RowStatistic(scope, found.statistic, tile.threads, source.width))
        sides = tuple(each.reduction.accumulator for each in products[:-1])
        return GpuGemm(scope, last, tile, source, ReadRows(scope, source, sides))

    def emit(self, plan: GpuGemm) -> tirx.Stmt:
        """Return the whole loop nest."""
        return plan.kernel()


def why_not_few_rows(func: tirx.PrimFunc, target: Target) -> str:
    """Return why the rule does not take a kernel; empty if it does."""
    with asking(func) as account:
        taken = GpuFewRows().planned(func, target) is not None
    return "" if taken else account.reason or "it is no product of few rows"


def worth_turning(kernel: Kernel, params: FewParams) -> list:
    """Return the matrices of a folded kernel that this rule would read faster with the depth innermost in memory."""
    found = _found(kernel)
    if found is None or found.few.along:
        return []
    few, vector = found.few, VECTOR_BYTES // found.few.bytes
    turned = replace(few, along=True, vector=vector)
    now, then = few_tile(few, params), few_tile(turned, params)
    if now is None or then is None or few.depth % vector:
        return []
    pays = _GAIN * price(then, turned, params).cycles < price(now, few, params).cycles
    return _matrices(found) if pays else []


def _matrices(found: _Found) -> list:
    """Return the tensors of the right operands; none of them if one is no plain matrix of depth by columns."""
    b, j, k = (fresh(name) for name in ("b", "j", "k"))
    read = [right.value(b, j, k) for right in found.rights]
    plain = (len(each.indices) == 2 and uses(each.indices[0], [k]) and not uses(each.indices[0], [j]) for each in read)
    return [each.source for each in read] if all(plain) else []


def _found(kernel: Kernel) -> _Found | None:
    """Return the products of a kernel: one, or several of the same left operand that make one result.

    A sum over each row may come before them (`gemm.row_statistic`).
    """
    statistic, kernel = without_statistic(kernel)
    found = _found_products(kernel)
    if statistic is None or found is None:
        return found
    last = found.products[-1]
    if last.batch > 1 or statistic.rows != last.rows or not found.few.staged:
        return declined("the sum over its rows is not that of rows in shared memory")
    return replace(found, statistic=statistic)


def _found_products(kernel: Kernel) -> _Found | None:
    sums = [stage for stage in kernel.stages if stage.reduction]
    rest = [stage for stage in kernel.stages if not stage.reduction]
    if not sums or len(rest) > 1 or len(kernel.outputs) != 1 or (len(sums) > 1 and not rest):
        return declined("no sums of products that make one result")
    made = [buffer for stage in sums for buffer in stage.outputs]
    reductions = [reduction_of(Kernel((*kernel.inputs, *made), kernel.outputs, (stage, *rest))) for stage in sums]
    contractions = [contraction_of(each) if each is not None else None for each in reductions]
    if any(each is None or str(each.reduction.accumulator.ty.dtype) != FLOAT for each in contractions):
        return declined("no sum of products of two operands in float32")
    if any(load.source.same_as(buffer) for stage in sums for load in stage.loads for buffer in made):
        return declined("a sum reads another one")
    across = [each.extent(each.rows) <= each.extent(each.columns) for each in contractions]
    return _of([each if wide else each.swapped() for each, wide in zip(contractions, across, strict=True)])


def _of(ways: list[Contraction]) -> _Found | None:
    """Return products whose right operands are read in vectors, and whose rows are few."""
    if any(not way.columns for way in ways):
        return declined("no columns")
    products = tuple(map(MatmulProduct, ways))
    last = products[-1]
    if last.rows > MOST_ROWS - (product_type(last.contraction) == HALF):
        return declined(f"{last.rows} rows: they are tiled in shared memory")
    if not all(_alike(each, last) for each in products[:-1]):
        return declined("its products have different left operands")
    read = _read(last.left)
    if read is None:
        return declined("its left operand is computed from many values")
    rights, casts = zip(*(_stored(each.right) for each in products), strict=True)
    found = [(_vector(right), cast) for right, cast in zip(rights, casts, strict=True)]
    if len(set(found)) > 1 or found[0][0] is None:
        return declined(f"the right operand has no vectors of {_LEAST_BYTES} bytes")
    along, vector, size = found[0][0]
    few = Few(last.batch, last.rows, last.columns, last.depth, len(products), along, vector, size, read, _bytes(last))
    return _Found(products, rights, casts[0], few)


def _are_weights(found: _Found, kernel: Kernel, params: FewParams) -> bool:
    """Whether the right operands are weights, which no kernel writes."""
    weights = [buffer for number, buffer in enumerate(kernel.inputs) if number in params.weights]
    read = [right.value(index(0), index(0), index(0)).source for right in found.rights]
    return all(any(each.same_as(weight) for weight in weights) for each in read)


def _alike(one: MatmulProduct, other: MatmulProduct) -> bool:
    """Whether two products have the same sizes and left operand."""

    def sizes(product: MatmulProduct) -> tuple[int, ...]:
        return product.batch, product.rows, product.columns, product.depth

    at = [fresh(name) for name in ("b", "i", "k")]
    return sizes(one) == sizes(other) and tvm_ffi.structural_equal(one.left.value(*at), other.left.value(*at))


def _read(left: Operand) -> int | None:
    """Return the numbers that are loaded for one of the left operand; None if they are too many, or no floats."""
    value = left.value(*(fresh(name) for name in ("b", "i", "k")))
    many = len(loads(value))
    return max(1, many) if many <= _MOST_READ and _number(value) else None


def _bytes(product: MatmulProduct) -> int:
    """Return the bytes of the left operand of a batch, as its numbers are multiplied."""
    value = product.left.value(index(0), index(0), index(0))
    return product.rows * product.depth * DataType(str(value.ty.dtype)).itemsize


def _number(value) -> bool:
    return str(value.ty.dtype) in (FLOAT, *RANGES)


def _stored(right: Operand) -> tuple[Operand, tuple[str, ...]]:
    """Return an operand as it is in memory, and the types that its numbers become, one after the other."""

    def bare(value) -> tuple:
        casts = []
        while isinstance(value, tirx.Cast):
            casts.append(str(value.ty.dtype))
            value = value.value
        return value, tuple(reversed(casts))

    casts = bare(right.value(index(0), index(0), index(0)))[1]
    return replace(right, value=lambda b, j, k: bare(right.value(b, j, k))[0]), casts


def _vector(right: Operand) -> tuple[bool, int, int] | None:
    """Return (vectors lie along the depth, numbers of a vector, bytes of a number) of a matrix that is only loaded."""
    value = right.value(index(0), index(0), index(0))
    read = loads(value)
    if len(read) != 1 or not value.same_as(read[0]) or not _number(value):
        return None
    size = DataType(str(value.ty.dtype)).itemsize
    most = VECTOR_BYTES // size
    runs = [(right.run(along, most), along) for along in (False, True)]
    width, along = max(runs, key=lambda each: each[0])
    return (along, width, size) if width * size >= _LEAST_BYTES else None
