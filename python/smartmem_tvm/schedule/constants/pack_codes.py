# SPDX-License-Identifier: Apache-2.0
"""Weights in codes, in panels: packed at compile time into bits, in the order in which products read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, sym, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.codes import BYTE, BYTES_IN_WORD, EIGHT, FOUR, IN_WORD, WORD, Codes, codes_of, gathered_codes, in_panels
from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import Kernel, Stage, shape_of, substitute
from ...ir.walk import collect, contains
from ...target import is_cpu, is_gpu
from ..core.coded_panels import group_of
from ..core.contraction import Contraction, contraction_of
from ..core.expressions import Walk, fused_index, replace_loads
from ..core.is_product import from_first_sum
from ..core.nest import fresh, index
from ..core.reduction import reduction_of
from ..core.rule import is_open, target_of
from ..cpu.coded_plan import LONG, VECTORS
from ..cpu.matmul import Matmul
from ..cpu.packed_vectors import has_byte_products
from ..cpu.params import CpuParams
from ..gpu.machine import VECTOR
from ..gpu.matmul.coded_tile import PANEL
from ..gpu.matmul.matmul import GpuMatmul
from ..gpu.matmul.matmul_tile import GpuMatmulParams

_MIDDLE = 8  # by definition, in steps: zero point of codes of four bits for integers from -8 to 7
_LARGEST = 15  # by definition, in steps: largest code of four bits
_LARGEST_ZERO = 127  # by definition, in steps: largest zero point of codes of four bits, a signed byte
_MIDDLE_EIGHT, _LARGEST_EIGHT = 128, 255  # by definition, in steps: the same of eight bits in words


@module_pass(opt_level=0, name="PackCodes")
class PackCodes:
    """Store the integers of a weight in four bits where they fit, else in eight, in panels of columns.

    Before, with bytes and scales of 768 x 2048 and 24 x 2048 numbers, in groups of 32 along the depth::

        C[i, j] += A[i, k] * (float(q[k, j]) * s[k // 32, j])

    After, with words of 32 x 24 x 4 x 64 eights of codes, and scales of 32 x 24 x 64::

        C[i, j] += A[i, k] * (float((q[j // 64, k // 32, k % 32 // 8, j % 64] >> k % 8 * 4 & 15) - 8) * s[...])

    A vector of words holds eight steps along the depth for as many columns as it has lanes: a shift, or a mask, gives a
    vector of codes. Integers of a group that are not within -8 to 7, but within 16 numbers, get a zero point. For GPUs
    codes of eight bits are in words as well, four steps in each. A kernel that gathers rows of a table, which a product
    reads as well, reads the product's panels, so that both share one constant.

    Refuses (leaves as bytes) weights that a product reads along several dimensions at once, or in a shape that has no
    constant strides.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        read: list[_Read] = []
        mod = _exchanged(mod, _products, read)
        return _exchanged(mod, _gathers, read) if read else mod


def _exchanged(mod: IRModule, parts: Callable, read: list[_Read]) -> IRModule:
    """Return the module with the weights of products in panels, or of gathers; parameters as of `_packed`."""
    constants, calls, found = constant_operands(mod), private_calls(mod), {}
    for gvar, func in mod.functions_items():
        if gvar not in constants or not is_open(func):
            continue
        target = target_of(func, gvar.name_hint)
        if not (is_cpu(target) or is_gpu(target)):
            continue
        values = {n: partial(constants_of, calls[gvar], n) for n in constants[gvar]}
        rule = Matmul() if is_cpu(target) else GpuMatmul()
        changed = rule.ask(func, target, partial(_packed, parts=parts, values=values, read=read))
        if changed is not None:
            found[gvar] = changed
    return exchange(mod, found)


@dataclass(frozen=True)
class _Order:
    """The order in which a target's kernels read panels: their widths, in columns, and the codes in an element.

    Attributes
    ----------
    vector, vectors : int
        Columns of a panel are a multiple of `vector`, and at most `vectors` of them.
    bytes_in_word, of_rows_in_bytes : int
        Codes of eight bits in an element: of those that are multiplied by floats, and by rows in codes.
    """

    vector: int
    vectors: int
    bytes_in_word: int
    of_rows_in_bytes: int

    @classmethod
    def of(cls, params: CpuParams | GpuMatmulParams) -> _Order:
        """Return the order of a target with these parameters."""
        if isinstance(params, GpuMatmulParams):
            return cls(VECTOR, PANEL // VECTOR, BYTES_IN_WORD, BYTES_IN_WORD)
        return cls(params.lanes, VECTORS, 1, BYTES_IN_WORD if has_byte_products(params) else 1)

    def width(self, columns: int) -> int:
        """Return the columns of a panel."""
        return min(self.vectors, -(-columns // self.vector)) * self.vector


def _packed(
    kernel: Kernel,
    params: CpuParams | GpuMatmulParams,
    parts: Callable,
    values: Mapping[int, Callable[[], list[np.ndarray]]],
    read: list[_Read],
) -> Exchange | None:
    """Return the kernel with the weights of all its products, or gathers, in panels; None if it has none that can be.

    Parameters
    ----------
    parts : callable
        `_products` or `_gathers`.
    read : list of _Read
        The weights that products read in panels; `_products` adds to it.
    """
    order = _Order.of(params)
    positions = {buffer: n for n, buffer in enumerate(kernel.inputs) if n in values}
    forms, added, inputs, stages = {}, [], list(kernel.inputs), list(kernel.stages)

    def give(position: int, buffer, make: Callable) -> None:
        """Let the new kernel read ``make(constant)``: in the constant's place, or as a further input."""
        if position in forms:
            inputs.append(buffer)
            added.append((position, make))
        else:
            inputs[position], forms[position] = buffer, make

    for part in parts(kernel, order, positions, values, read):
        form = _form(part.layout, values[part.at[0]](), part.bytes_in_word(order))
        words, scales, zeros = part.layout.buffers(form, part.codes)
        stages[part.number] = part.reading(form, words, scales, zeros, stages[part.number])
        give(part.at[0], words, partial(part.layout.codes, form))
        give(part.at[1], scales, part.layout.scales)
        if zeros is not None:
            give(part.at[0], zeros, partial(part.layout.zeros, form))
    return Exchange(Kernel(tuple(inputs), kernel.outputs, tuple(stages)), forms, added) if forms else None


@dataclass(frozen=True)
class _Read:
    """Weights of a product: their shape, the function that returns them, and whether rows in codes multiply them."""

    shape: tuple[int, ...]
    arrays: Callable[[], list[np.ndarray]]
    of_codes: bool

    def has(self, table: np.ndarray) -> bool:
        """Whether a table is one of them, perhaps transposed: a pass may have turned the weight of a product."""
        ways = [each for each in (table, table.T) if each.shape == self.shape]
        return bool(ways) and any(np.array_equal(way, each) for each in self.arrays() for way in ways)


def _products(kernel: Kernel, order: _Order, positions: Mapping, values: Mapping, read: list) -> list[_CodedStage]:
    """Return the products whose weights go into panels, and note these."""
    found = [_part(kernel, number, order, positions) for number in range(len(kernel.stages))]
    found = _only_readers(kernel, [each for each in found if each is not None])
    read += [_Read(shape_of(part.codes.load.source), values[part.at[0]], part.of_codes) for part in found]
    return found


def _gathers(kernel: Kernel, order: _Order, positions: Mapping, values: Mapping, read: list) -> list[_CodedStage]:
    """Return the stages that gather rows of such weights."""

    def of_codes(position: int) -> bool | None:
        """Whether the products multiply a table by rows in codes, if all calls read tables of products; else None."""
        known = [[each.of_codes for each in read if each.has(array)] for array in values[position]()]
        both = {all(flags) for flags in known if flags}  # some do both: floats decide
        return both.pop() if all(known) and len(both) == 1 else None

    found = [_gather(kernel, number, order, positions, of_codes) for number in range(len(kernel.stages))]
    found = [each for each in found if each is not None]

    def whole(part: _CodedStage) -> bool:
        """Whether each stage that reads the codes, or the scales, gathers these rows."""
        for source in part.sources:
            alike = {each.number for each in found if any(source.same_as(buffer) for buffer in each.sources)}
            stages = enumerate(kernel.stages)
            if any(load.source.same_as(source) for n, each in stages if n not in alike for load in each.loads):
                return False
        return True

    return found if all(map(whole, found)) else []


@dataclass(frozen=True, eq=False)
class _CodedStage:
    """A product, or a gather, of a kernel whose weight goes into panels.

    Attributes
    ----------
    number : int
        Of its stage.
    column, depth : expression
        The column of the weight that it reads, and the step along the depth.
    of_codes : bool
        The product's other operand is in codes, too.
    at : (int, int)
        Positions of the codes and the scales among the inputs.
    """

    number: int
    column: object
    depth: object
    of_codes: bool
    codes: Codes
    layout: _Layout
    at: tuple[int, int]

    @property
    def sources(self) -> tuple:
        """The buffers of the codes and the scales."""
        return self.codes.load.source, self.codes.scale.source

    def bytes_in_word(self, order: _Order) -> int:
        """Return the codes of eight bits in an element of a panel."""
        return order.of_rows_in_bytes if self.of_codes else order.bytes_in_word

    def reading(self, form: _Form, words, scales, zeros, stage: Stage) -> Stage:
        """Return the stage that reads panels."""
        layout, depth, column = self.layout, self.depth, self.column
        group = tirx.floordiv(depth, index(layout.group)) if layout.groups > 1 else index(0)
        place = (tirx.floordiv(column, index(layout.width)), group, tirx.floormod(column, index(layout.width)))
        step = tirx.floormod(depth, index(layout.group)) if layout.groups > 1 else depth

        def replaced(load):
            if load.source.same_as(self.codes.load.source):
                return in_panels(words, zeros, form.zero, place, step, form.in_word)
            return scales[place] if load.source.same_as(self.codes.scale.source) else None

        return replace(stage, body=replace_loads(stage.body, replaced))


def _part(kernel: Kernel, number: int, order: _Order, positions: Mapping) -> _CodedStage | None:
    way = _product(kernel, number, positions)
    if way is None:
        return None
    codes = codes_of(way.right)
    at = tuple(positions.get(load.source) for load in (codes.load, codes.scale))
    if None in at or not codes.value.same_as(codes.load):
        return None
    layout = _layout(codes, way.columns, way.depth[0], way.reduction.extents, order)
    if layout is None:
        return None
    column = fused_index(way.columns, way.reduction.extents)
    return _CodedStage(number, column, way.depth[0], codes_of(way.left) is not None, codes, layout, at)


def _gather(
    kernel: Kernel, number: int, order: _Order, positions: Mapping, of_codes: Callable[[int], bool | None]
) -> _CodedStage | None:
    """Return a stage that reads rows of codes, which a tensor names, along a whole dimension; None if it does not."""
    stage = kernel.stages[number]
    codes = next(filter(None, map(gathered_codes, collect(stage.body, tirx.Mul))), None)
    if codes is None or not all(_reads_alike(stage, load) for load in (codes.load, codes.scale)):
        return None
    places, scaled, sizes = codes.load.indices, codes.scale.indices, shape_of(codes.load.source)
    at = tuple(positions.get(load.source) for load in (codes.load, codes.scale))
    rows = [n for n, place in enumerate(places) if contains(place, ir.TensorLoad)]
    if None in at or len(places) != 2 or len(rows) != 1 or not codes.value.same_as(codes.load):
        return None
    row, depth = rows[0], places[1 - rows[0]]
    whole = isinstance(depth, ir.Var) and stage.extents.get(depth) == sizes[1 - row]
    known = of_codes(at[0]) if whole and tvm_ffi.structural_equal(places[row], scaled[row]) else None
    if known is None:
        return None
    column = fresh("n")
    alone = [
        load.source[tuple(column if n == row else each for n, each in enumerate(load.indices))]
        for load in (codes.load, codes.scale)
    ]
    layout = _layout(Codes(alone[0], *alone), (column,), depth, {column: sizes[row], depth: sizes[1 - row]}, order)
    return None if layout is None else _CodedStage(number, places[row], depth, known, codes, layout, at)


def _reads_alike(stage: Stage, load: ir.TensorLoad) -> bool:
    """Whether a stage reads a tensor at the place of one load only."""
    return all(tvm_ffi.structural_equal(each, load) for each in stage.loads if each.source.same_as(load.source))


def _only_readers(kernel: Kernel, parts: list[_CodedStage]) -> list[_CodedStage]:
    """Return the products whose codes and scales nothing else reads: several may read parts of one weight."""
    read = [load.source for stage in kernel.stages for load in stage.loads]

    def whole(part: _CodedStage, others: list[_CodedStage]) -> bool:
        mine = [(part.codes.load, [each.codes.load for each in others])]
        mine += [(part.codes.scale, [each.codes.scale for each in others])]
        return all(
            sum(each.same_as(load.source) for each in read) == sum(each.source.same_as(load.source) for each in known)
            for load, known in mine
        )

    found = [each for each in parts if whole(each, parts)]
    return found if len(found) == len(parts) else _only_readers(kernel, found)


def _product(kernel: Kernel, number: int, positions: Mapping) -> Contraction | None:
    """Return the product that a stage adds up, with a constant in codes on the right; None if it is none.

    Where it is the kernel's only one, the order of its columns is that of the kernel's result.
    """
    if not kernel.stages[number].reduction:
        return None
    first, run = from_first_sum(kernel)
    if first != number or sum(bool(stage.reduction) for stage in kernel.stages) > 1:
        run = Kernel(kernel.inputs, kernel.stages[number].outputs, (kernel.stages[number],))
    reduction = reduction_of(run)
    contraction = contraction_of(reduction) if reduction is not None else None
    if contraction is None or contraction.batch or len(contraction.depth) != 1:
        return None
    ways = [each for each in (contraction, contraction.swapped()) if each.columns and codes_of(each.right) is not None]
    return next((each for each in ways if codes_of(each.right).load.source in positions), None)


@dataclass(frozen=True)
class _Form:
    """How integers become codes: their bits, and their zero points; None where each group has its own.

    Attributes
    ----------
    in_word : int
        Codes in an element of a panel; 1 for signed bytes.
    """

    bits: int
    in_word: int
    zero: int | None
    zero_type: str = BYTE

    @property
    def least(self) -> int:
        """The least code."""
        return 0 if self.in_word > 1 else np.iinfo(BYTE).min


@dataclass(frozen=True)
class _Layout:
    """Panels of a weight, and where its numbers are before.

    Attributes
    ----------
    columns : tuple of int
        Extents of the iterators of the columns.
    depth, groups, group, length : int
        Steps along the depth, groups of them, steps of a group, and steps of a group in panels.
    width : int
        Columns of a panel.
    code_steps, scale_steps : tuple of int
        In the constants, the place of the first element, and the strides of the iterators of the columns and of the
        depth, or the groups.
    """

    columns: tuple[int, ...]
    depth: int
    groups: int
    group: int
    length: int
    width: int
    code_steps: tuple[int, ...]
    scale_steps: tuple[int, ...]

    @property
    def panels(self) -> int:
        """Number of panels."""
        return -(-prod(self.columns) // self.width)

    def buffers(self, form: _Form, codes: Codes) -> tuple:
        """Return the buffers of codes, scales, and zero points; None for these if all are the same."""
        outer, kind = (self.panels, self.groups), WORD if form.in_word > 1 else BYTE
        words = _buffer((*outer, self.length // form.in_word, self.width), kind, codes.load)
        scales = _buffer((*outer, self.width), str(codes.scale.ty.dtype), codes.scale)
        zeros = None if form.zero is not None else _buffer((*outer, self.width), form.zero_type, "zeros")
        return words, scales, zeros

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Return the integers of a weight as (panel, column, group, step); those that only pad are zero."""
        return self._padded(self._columns_of(array, self.code_steps, self.depth).astype("int16"))

    def _padded(self, whole: np.ndarray) -> np.ndarray:
        count, last = len(whole), self.groups * self.group
        padded = np.zeros((self.panels * self.width, self.groups, self.length), whole.dtype)
        deep = np.zeros((count, last), whole.dtype)
        deep[:, : self.depth] = whole
        padded[:count, :, : self.group] = deep.reshape(count, self.groups, self.group)
        return padded.reshape(self.panels, self.width, self.groups, self.length)

    def codes(self, form: _Form, array: np.ndarray) -> np.ndarray:
        """Return the codes as (panel, group, word or step, column)."""
        whole = self.integers(array)
        whole = whole + (self._zeros_of(form, whole) if form.zero is None else form.zero)
        whole = whole.astype(BYTE if form.in_word == 1 else "uint8")
        if form.bits == FOUR:
            whole = whole[..., ::2] | whole[..., 1::2] << FOUR
        together = whole if form.in_word == 1 else np.ascontiguousarray(whole).view(WORD)
        return np.ascontiguousarray(together.transpose(0, 2, 3, 1))

    def zeros(self, form: _Form, array: np.ndarray) -> np.ndarray:
        """Return the zero points as (panel, group, column), from the integers."""
        found = self._zeros_of(form, self.integers(array))[..., 0]
        return np.ascontiguousarray(found.transpose(0, 2, 1).astype(form.zero_type))

    @staticmethod
    def _zeros_of(form: _Form, whole: np.ndarray) -> np.ndarray:
        """Return the zero points of (panel, column, group, step): what makes the least integer the least code."""
        least = whole.min(-1, keepdims=True)
        return np.maximum(-least, 0) if form.bits == FOUR else form.least - least

    def scales(self, array: np.ndarray) -> np.ndarray:
        """Return the scales as (panel, group, column); those of columns that only pad are zero."""
        whole = self._columns_of(array, self.scale_steps, self.groups)
        padded = np.zeros((self.panels * self.width, self.groups), whole.dtype)
        padded[: len(whole)] = whole
        return np.ascontiguousarray(padded.reshape(self.panels, self.width, self.groups).transpose(0, 2, 1))

    def _columns_of(self, array: np.ndarray, steps: Sequence[int], along: int) -> np.ndarray:
        """Return a constant as (column, step or group)."""
        first, *strides = steps
        flat = np.ascontiguousarray(array).reshape(-1)[first:]
        strides = [step * flat.itemsize for step in strides]
        view = np.lib.stride_tricks.as_strided(flat, (*self.columns, along), strides, writeable=False)
        return view.reshape(-1, along)


def _layout(codes: Codes, columns: tuple, depth, extents: Mapping, order: _Order) -> _Layout | None:
    """Return the panels of a weight, or None if it, or its scales, have no constant strides."""
    sizes, deep = tuple(extents[var] for var in columns), extents[depth]
    group = group_of(codes.scale, depth, deep)
    if group is None:
        return None
    groups = -(-deep // group)
    number = fresh("g")
    scale_at = [substitute(each, {depth: number * index(group)}) for each in codes.scale.indices]
    code_steps = _steps(codes.load.source, codes.load.indices, {**dict(zip(columns, sizes)), depth: deep})
    scale_steps = _steps(codes.scale.source, scale_at, {**dict(zip(columns, sizes)), number: groups})
    if code_steps is None or scale_steps is None:
        return None
    unit = LONG if groups == 1 and deep > LONG else IN_WORD
    length = -(-group // unit) * unit
    return _Layout(sizes, deep, groups, group, length, order.width(prod(sizes)), code_steps, scale_steps)


def _steps(buffer, indices: Sequence, extents: Mapping) -> tuple[int, ...] | None:
    """Return the place of the first element of an access, and its strides; None if they vary."""
    walk = Walk(extents)
    steps = [walk.stride(buffer, indices, var) for var in extents]
    first = sym.Analyzer().simplify(substitute(walk.offset(buffer, indices), {var: index(0) for var in extents}))
    whole = all(step is not None and step >= 0 for step in steps)
    return (int(first), *steps) if whole and isinstance(first, tirx.IntImm) else None


def _form(layout: _Layout, arrays: Sequence[np.ndarray], bytes_in_word: int) -> _Form:
    """Return the bits and zero points that fit the weights of all calls of a kernel."""

    def within(low: int, high: int) -> bool:
        return all(low <= each.min() and each.max() <= high for each in arrays)

    if within(-_MIDDLE, _MIDDLE - 1):
        return _Form(FOUR, IN_WORD, _MIDDLE)
    if within(0, _LARGEST):
        return _Form(FOUR, IN_WORD, 0)
    groups = [layout.integers(each) for each in arrays]
    least, most = ([np.asarray(extreme(each, -1)) for each in groups] for extreme in (np.min, np.max))
    short = (
        np.all(high + np.maximum(-low, 0) <= _LARGEST) and np.all(-low <= _LARGEST_ZERO)
        for low, high in zip(least, most)
    )
    if all(short):
        return _Form(FOUR, IN_WORD, None)
    low, high = np.iinfo(BYTE).min, np.iinfo(BYTE).max
    if bytes_in_word > 1:
        known = (zero for zero in (_MIDDLE_EIGHT, 0) if within(-zero, _LARGEST_EIGHT - zero))
        zero = next(known, None)
        return _Form(EIGHT, bytes_in_word, zero, "int16")
    return _Form(EIGHT, 1, 0) if within(low, high) else _Form(EIGHT, 1, None, "int16")


def _buffer(shape: Sequence[int], dtype: str, like):
    name = like if isinstance(like, str) else like.source.name
    return tirx.decl_buffer([index(each) for each in shape], dtype, name)
