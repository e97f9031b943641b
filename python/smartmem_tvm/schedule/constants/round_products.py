# SPDX-License-Identifier: Apache-2.0
"""RoundProducts: round the operands of matmuls and convolutions to bfloat16, on CPUs with AMX."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod

import ml_dtypes
import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from ...analysis.row_chain import Product, RowChain
from ...ir.compose import replace_loads
from ...ir.exchange_constants import Exchange, constant_operands, exchange
from ...ir.graph import append_log
from ...ir.half import is_exactly
from ...ir.kernel import Kernel, Stage, substitute
from ..choose import after as after_rule
from ..choose import first_of
from ..core.contraction import Contraction
from ..core.decisions import deciding, given_rule
from ..core.expressions import Walk, fused_index, uses
from ..core.is_product import from_first_sum
from ..core.nest import index
from ..core.rule import is_open, target_of
from ..cpu.attention import chain_in
from ..cpu.bfloat16_plan import Bfloat16Plan, plain_contraction, round_operand
from ..cpu.bfloat16_product import Bfloat16Product
from ..cpu.gemm.amx import DEPTH, SIDE, bits_of, of_bits
from ..cpu.gemm.amx_image import AmxImage, amx_image_of
from ..cpu.gemm.micro_kernels import BFLOAT16, FLOAT
from ..cpu.matmul import Matmul
from ..cpu.params import CpuParams
from ..cpu.slide import Slide
from .pack_weights import walk_start


@module_pass(opt_level=0, name="RoundProducts")
class RoundProducts:
    """Round what matmuls and convolutions multiply to bfloat16, constants at once and into tiles.

    Before, with ``b`` of 768 x 3072 elements::

        C[i, j] += A[i, k] * b[k, j]

    After, with ``b`` of 192 x 24 x 16 x 32 elements of bfloat16::

        C[i, j] += float(bfloat16(A[i, k])) * float(b[j // 16, k // 32, k % 32 // 2, j % 16 * 2 + k % 2])

    Sums and their epilogues stay float32, and so do all other inputs and the results of kernels. The log tells which
    products stay as they are, and why.

    A convolution's padded copy stays a stage of its own in front of the product.

    Refuses (leaves in float32) products with a vector, products in chains of rows (attention) that are smaller than
    tiles, and products that would not be faster, such as most with few channels in a group.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants, found, log = constant_operands(mod), {}, []
        for gvar, func in mod.functions_items():
            if not (isinstance(func, tirx.PrimFunc) and is_open(func) and given_rule(func) is None):
                continue
            rounding = _Rounding(func, target_of(func, gvar.name_hint), constants.get(gvar, ()))
            if rounding.found is not None:
                found[gvar] = rounding.found
            if rounding.multiplies:
                log.append({"pass": "RoundProducts", "kernel": gvar.name_hint, **rounding.decision})
        return append_log(exchange(mod, found), log)


@dataclass(frozen=True)
class TiledConstant:
    """One constant operand in tiles.

    Attributes
    ----------
    extents, steps : tuple of tuple of int
        Extents of the iterators of batch, rows (or columns) and depth, and the operand's strides in elements.
    paired : bool
        Whether pairs of numbers along the depth are contiguous for each column, as in a right operand.
    room : int
        Size of the innermost iterator of the depth in the tiles; beyond its extent there are zeros.
    """

    extents: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    paired: bool
    room: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, tiles of rows or columns, tiles of the depth, and the two sizes of a tile."""
        batch, length, (*outer, _) = prod(self.extents[0]), prod(self.extents[1]), self.extents[2]
        return batch, -(-length // SIDE), -(-prod(outer) * self.room // DEPTH), SIDE, DEPTH

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the operand's values in tiles, padded with zeros."""
        flat, extents = np.ascontiguousarray(array).reshape(-1), sum(self.extents, ())
        strides = [step * flat.itemsize for step in sum(self.steps, ())]
        batch, length, (*outer, inner) = prod(self.extents[0]), prod(self.extents[1]), self.extents[2]
        whole = np.lib.stride_tricks.as_strided(flat, extents, strides, writeable=False)
        _, tiles, steps, _, _ = self.shape
        padded = np.zeros((batch, tiles * SIDE, steps * DEPTH), ml_dtypes.bfloat16)
        places = padded[:, :, : prod(outer) * self.room].reshape(batch, tiles * SIDE, prod(outer), self.room)
        places[:, :length, :, :inner] = whole.reshape(batch, length, prod(outer), inner)
        padded[:, :, : prod(outer) * self.room] = places.reshape(batch, tiles * SIDE, -1)
        apart = padded.reshape(batch, tiles, SIDE, steps, DEPTH).swapaxes(2, 3)
        if self.paired:
            apart = apart.reshape(batch, tiles, steps, SIDE, DEPTH // 2, 2).swapaxes(3, 4)
        return np.ascontiguousarray(apart).reshape(self.shape)


class _Rounding:
    """The decision whether to round a kernel's products, and the kernel with rounded operands.

    Attributes
    ----------
    found : Exchange or None
        The kernel with rounded operands; None if it stays as it is.
    multiplies : bool
        Whether the kernel has products.
    decision : dict
        The decision for the log.
    """

    def __init__(self, func: tirx.PrimFunc, target: Target, constants: Collection[int]):
        self.constants, self.found, self.multiplies = constants, None, False
        self.decision: dict = {}
        with deciding(func):
            Matmul().ask(func, target, partial(self._look_at, func, target))

    def _look_at(self, func: tirx.PrimFunc, target: Target, kernel: Kernel, params: CpuParams) -> None:
        first, run = from_first_sum(kernel)
        contraction = plain_contraction(run)
        chain = chain_in(func, target) if first or contraction is None else None
        if chain is not None or contraction is None:
            self._look_at_chain(chain)
            return
        self.multiplies = True
        reason = self._objection(contraction)
        if reason is None:
            ways = [self._changed(kernel, first, contraction), *self._in_tiles(kernel, first, contraction)]
            plans = [Bfloat16Plan.of(from_first_sum(way.kernel)[1], params) for way in ways]
            best = min(range(len(ways)), key=lambda n: plans[n].price.cycles if plans[n] else inf)
            reason = price_objection(kernel, run, plans[best], params)
        self.found = None if reason else ways[best]
        self.decision = {"multiplied": FLOAT, "reason": reason} if reason else {"multiplied": BFLOAT16}

    def _look_at_chain(self, chain: RowChain | None) -> None:
        if chain is None:
            return
        self.multiplies = True
        worth = [stage for stage, product in chain.products.items() if _is_worth_tiles(chain, stage, product)]
        if not worth:
            self.decision = {"multiplied": FLOAT, "reason": "its products are smaller than tiles"}
            return
        stages = tuple(_rounded(each, chain.products[each]) if each in worth else each for each in chain.kernel.stages)
        self.found = Exchange(Kernel(chain.kernel.inputs, chain.kernel.outputs, stages), {})
        self.decision = {"multiplied": BFLOAT16}

    @staticmethod
    def _objection(contraction: Contraction) -> str | None:
        if any(str(each.ty.dtype) != FLOAT for each in (contraction.left, contraction.right)):
            return "its operands are of another type"
        return None

    def _in_tiles(self, kernel: Kernel, first: int, contraction: Contraction) -> list[Exchange]:
        """Return the kernel with the image of its windows in tiles, if that is possible, in a list."""
        found = amx_image_of(contraction)
        wide = _for_tiles(kernel, first, found) if found is not None else None
        if wide is None:
            return []
        channels = contraction.reduction.extents[found.channel]
        changed = self._changed(wide, first, plain_contraction(from_first_sum(wide)[1]), channels)
        return [changed] if changed.forms else []  # surplus channels are zero in constant weights only

    def _changed(self, kernel: Kernel, first: int, contraction: Contraction, channels: int | None = None) -> Exchange:
        """Return the kernel with rounded operands; `channels` is the real extent of a padded innermost reduction."""
        stage, inputs, forms, operands = kernel.stages[first], list(kernel.inputs), {}, []
        for operand, length, paired in (
            (contraction.left, contraction.rows, False),
            (contraction.right, contraction.columns, True),
        ):
            position = self._constant(kernel, operand)
            blocks = None if position is None else blocks_of(contraction, operand, length, paired, channels)
            if blocks is None:
                operands.append(round_operand(operand))
                continue
            shape = [index(each) for each in blocks.shape]
            inputs[position] = tirx.decl_buffer(shape, BFLOAT16, operand.source.name)
            forms[position] = blocks.pack
            operands.append(_in_blocks(inputs[position], contraction, operand, length, paired).astype(FLOAT))
        store, whole = stage.body, _whole_iterators(stage, contraction)
        left, right = (substitute(each, whole) for each in operands)
        total = store.buffer[tuple(store.indices)] + left * right
        changed = replace(stage, body=tirx.BufferStore(store.buffer, total, store.indices))
        stages = (*kernel.stages[:first], changed, *kernel.stages[first + 1 :])
        return Exchange(Kernel(tuple(inputs), kernel.outputs, stages), forms)

    def _constant(self, kernel: Kernel, operand) -> int | None:
        """Return the position of the constant that an operand loads, if no other load reads it; else None."""
        if not isinstance(operand, ir.TensorLoad):
            return None
        reads = [load for stage in kernel.stages for load in stage.loads if load.source.same_as(operand.source)]
        places = [i for i in self.constants if kernel.inputs[i].same_as(operand.source)]
        return places[0] if places and len(reads) == 1 else None


def _whole_iterators(stage: Stage, contraction: Contraction) -> dict:
    """Return split iterator -> its value in terms of the stage's own iterator, which was split for groups."""
    found, split = {}, contraction.reduction
    parts = iter(split.spatial)
    for var in (each for each in stage.spatial if stage.extents[each] > 1):
        length, digits = stage.extents[var], [next(parts)]
        while prod(split.extents[each] for each in digits) < length:
            digits.append(next(parts))
        if len(digits) > 1:
            for digit in digits:
                length //= split.extents[digit]
                found[digit] = tirx.floormod(tirx.floordiv(var, index(length)), index(split.extents[digit]))
    return found


def _for_tiles(kernel: Kernel, first: int, found: AmxImage) -> Kernel | None:
    """Return the kernel in the form that an image in tiles needs; None if no stage of the kernel pads the image.

    The padded image has room for whole tiles, with zeros in the surplus channels; if its numbers are exactly bfloat16,
    it holds their bits. The loop over the channels is inside of those over the window's taps.
    """
    padded, stages = found.image.load.source, list(kernel.stages)
    maker = next((n for n, stage in enumerate(stages) if stage.body.buffer.same_as(padded)), None)
    readers = [load for stage in stages for load in stage.loads if load.source.same_as(padded)]
    at = next((n for n, each in enumerate(found.image.load.indices) if each.same_as(found.channel)), None)
    if maker is None or len(readers) > 1 or at is None:
        return None
    make, channel = stages[maker].body, stages[maker].iters[at]
    if not make.indices[at].same_as(channel.var):
        return None
    shape = list(map(int, padded.shape))
    value, in_bits = make.value, is_exactly(make.value, BFLOAT16)
    if shape[at] < found.channels:
        there = channel.var < tirx.const(shape[at], channel.var.ty.dtype)
        value = tirx.if_then_else(there, value, tirx.const(0, value.ty.dtype))
    shape[at], shape[-1] = found.channels, max(shape[-1], found.width)
    wide = tirx.decl_buffer(list(map(index, shape)), "uint16" if in_bits else FLOAT, padded.name, layout=None)
    store = tirx.BufferStore(wide, bits_of(value) if in_bits else value, make.indices)

    def widened(it):
        return tirx.IterVar(ir.Range(index(0), index(found.channels)), it.var, it.iter_type)

    def read(indices):
        return of_bits(wide[tuple(indices)]) if in_bits else wide[tuple(indices)]

    made = [widened(it) if it.var.same_as(channel.var) else it for it in stages[maker].iters]
    iters = [widened(it) if it.var.same_as(found.channel) else it for it in stages[first].iters]
    iters.sort(key=lambda it: it.var.same_as(found.channel))
    stages[maker] = replace(stages[maker], iters=tuple(made), body=store)
    stages[first] = replace_loads(replace(stages[first], iters=tuple(iters)), padded, read)
    return Kernel(kernel.inputs, kernel.outputs, tuple(stages))


def _is_worth_tiles(chain: RowChain, stage: Stage, product: Product) -> bool:
    depth, columns = (prod(stage.extents[v] for v in vars_) for vars_ in (stage.reduction, product.columns))
    floats = all(str(each.ty.dtype) == FLOAT for each in (product.left, product.right, stage.body.value))
    return floats and min(depth, columns, chain.row_count) >= SIDE


def _rounded(stage: Stage, product: Product) -> Stage:
    """Return the stage of a product with rounded operands."""
    store = stage.body
    total = store.buffer[tuple(store.indices)] + round_operand(product.left) * round_operand(product.right)
    return replace(stage, body=tirx.BufferStore(store.buffer, total, store.indices))


def price_objection(kernel: Kernel, run: Kernel, after: Bfloat16Plan | None, params: CpuParams) -> str | None:
    """Return why the product is better left in float32, or None.

    Parameters
    ----------
    kernel, run : Kernel
        The kernel in float32, and its stages from the product on.
    after : Bfloat16Plan or None
        The product with rounded operands.
    """
    if after is None:
        return "no schedule knows it in bfloat16"
    products = [rule for rule in after_rule(Bfloat16Product) if isinstance(rule, Slide | Matmul)]
    _, before = first_of(products, kernel, params) or first_of(products, run, params) or (None, None)
    now = before.price.cycles if before is not None else 0.0
    rounded = after.price.cycles
    if rounded >= now:
        return f"price: {rounded / 1e6:.2f} M cycles in bfloat16, {now / 1e6:.2f} M in float32"
    return None


def blocks_of(
    contraction: Contraction, operand, length: tuple, paired: bool, innermost: int | None = None
) -> TiledConstant | None:
    """Return the tiles of a constant operand, None if it is no strided view of the constant.

    Parameters
    ----------
    innermost : int, optional
        Real extent of the innermost iterator of the depth, if that is padded.
    """
    extents = contraction.reduction.extents
    groups = (tuple(uses(operand, contraction.batch)), length, contraction.depth)
    walk, vars_ = Walk(extents), sum(groups, ())
    steps: Mapping = {var: walk.load_stride(operand, var) for var in vars_}
    origin = walk.analyzer.simplify(walk.offset(operand.source, operand.indices))
    if any(step is None or step < 0 for step in steps.values()) or walk_start(origin, vars_) != 0:
        return None
    batch, places, depth = (tuple(extents[var] for var in group) for group in groups)
    sizes = batch, places, (*depth[:-1], innermost or depth[-1])
    return TiledConstant(sizes, tuple(tuple(steps[var] for var in group) for group in groups), paired, depth[-1])


def _in_blocks(packed, contraction: Contraction, operand, length: tuple, paired: bool):
    """Return the load, from the tiles, of the element that `operand` reads."""
    extents, (side, wide) = contraction.reduction.extents, map(index, (SIDE, DEPTH))
    groups = (tuple(uses(operand, contraction.batch)), length, contraction.depth)
    batch, place, depth = (fused_index(group, extents) for group in groups)
    tile, step = tirx.floordiv(place, side), tirx.floordiv(depth, wide)
    row, column = tirx.floormod(place, side), tirx.floormod(depth, wide)
    if paired:
        two = index(2)
        row, column = tirx.floordiv(column, two), row * two + tirx.floormod(column, two)
    return packed[batch, tile, step, row, column]
