# SPDX-License-Identifier: Apache-2.0
"""Weights in codes, in panels: packed at compile time into bits, in the order in which products read them on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from tvm import IRModule, ir, sym, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.codes import BYTE, FOUR, IN_WORD, WORD, Codes, codes_of, in_panels
from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import Kernel, substitute
from ...ir.walk import collect
from ...target import is_cpu
from ..core.contraction import Contraction, contraction_of
from ..core.expressions import Walk, fused_index, replace_loads
from ..core.is_product import from_first_sum
from ..core.nest import fresh, index
from ..core.reduction import reduction_of
from ..core.rule import is_open, target_of
from ..cpu.coded_plan import LONG, VECTORS
from ..cpu.matmul import Matmul
from ..cpu.params import CpuParams

_MIDDLE = 8  # by definition, in steps: zero point of codes of four bits for integers from -8 to 7
_LARGEST = 15  # by definition, in steps: largest code of four bits


@module_pass(opt_level=0, name="PackCodes")
class PackCodes:
    """Store the integers of a weight in four bits where they fit, else in eight, in panels of columns.

    Before, with bytes and scales of 768 x 2048 and 24 x 2048 numbers, in groups of 32 along the depth::

        C[i, j] += A[i, k] * (float(q[k, j]) * s[k // 32, j])

    After, with words of 32 x 24 x 4 x 64 eights of codes, and scales of 32 x 24 x 64::

        C[i, j] += A[i, k] * (float((q[j // 64, k // 32, k % 32 // 8, j % 64] >> k % 8 * 4 & 15) - 8) * s[...])

    A vector of words holds eight steps along the depth for as many columns as it has lanes: a shift, or a mask, gives a
    vector of codes. Integers of a group that are not within -8 to 7, but within 16 numbers, get a zero point.

    Refuses (leaves as bytes) weights that a product reads along several dimensions at once, or in a shape that has no
    constant strides.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants, calls, found = constant_operands(mod), private_calls(mod), {}
        for gvar, func in mod.functions_items():
            if gvar not in constants or not is_open(func):
                continue
            target = target_of(func, gvar.name_hint)
            if not is_cpu(target):
                continue
            values = {n: partial(constants_of, calls[gvar], n) for n in constants[gvar]}
            changed = Matmul().ask(func, target, partial(_packed, values=values))
            if changed is not None:
                found[gvar] = changed
        return exchange(mod, found)


def _packed(kernel: Kernel, params: CpuParams, values: Mapping[int, Callable[[], list[np.ndarray]]]) -> Exchange | None:
    """Return the kernel with the weights of all its products in panels, or None if it has none that can be."""
    forms, added = {}, []
    for number in range(len(kernel.stages)):
        found = _packed_stage(kernel, number, params, values)
        if found is not None:
            kernel = found.kernel
            forms |= found.forms
            added += found.added
    return Exchange(kernel, forms, added) if forms else None


def _packed_stage(kernel: Kernel, number: int, params: CpuParams, values: Mapping) -> Exchange | None:
    way = _product(kernel, number)
    if way is None:
        return None
    codes, extents = codes_of(way.right), way.reduction.extents
    positions = {buffer: n for n, buffer in enumerate(kernel.inputs) if n in values}
    at = [positions.get(load.source) for load in (codes.load, codes.scale)]
    if None in at or not codes.value.same_as(codes.load) or _read_elsewhere(kernel, codes):
        return None
    layout = _layout(codes, way.columns, way.depth[0], extents, params.lanes)
    if layout is None:
        return None
    form = _form(layout, values[at[0]]())
    words, scales, zeros = layout.buffers(form, codes)
    column, depth = fused_index(way.columns, extents), way.depth[0]
    group = tirx.floordiv(depth, index(layout.group)) if layout.groups > 1 else index(0)
    place = (tirx.floordiv(column, index(layout.width)), group, tirx.floormod(column, index(layout.width)))
    step = tirx.floormod(depth, index(layout.group)) if layout.groups > 1 else depth

    def replaced(load):
        if load.source.same_as(codes.load.source):
            return in_panels(words, zeros, form.zero, place, step)
        return scales[place] if load.source.same_as(codes.scale.source) else None

    stages = list(kernel.stages)
    stages[number] = replace(stages[number], body=replace_loads(stages[number].body, replaced))
    inputs = [words if n == at[0] else scales if n == at[1] else each for n, each in enumerate(kernel.inputs)]
    inputs += [] if zeros is None else [zeros]
    added = [] if zeros is None else [(at[0], partial(layout.zeros, form))]
    forms = {at[0]: partial(layout.codes, form), at[1]: layout.scales}
    return Exchange(Kernel(tuple(inputs), kernel.outputs, tuple(stages)), forms, added)


def _product(kernel: Kernel, number: int) -> Contraction | None:
    """Return the product that a stage adds up, with a weight in codes on the right; None if it is none.

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
    ways = (contraction, contraction.swapped())
    return next((each for each in ways if each.columns and codes_of(each.right) is not None), None)


def _read_elsewhere(kernel: Kernel, codes: Codes) -> bool:
    """Whether another load reads the codes or the scales."""
    read = [load.source for stage in kernel.stages for load in stage.loads]
    return any(sum(each.same_as(load.source) for each in read) != 1 for load in (codes.load, codes.scale))


@dataclass(frozen=True)
class _Form:
    """How integers become codes: their bits, and their zero points; None where each group has its own."""

    bits: int
    zero: int | None
    zero_type: str = BYTE


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
        Strides of the iterators of the columns and of the depth, or the groups, in the constants.
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
        four, outer = form.bits == FOUR, (self.panels, self.groups)
        words = _buffer(
            (*outer, self.length // (IN_WORD if four else 1), self.width), WORD if four else BYTE, codes.load
        )
        scales = _buffer((*outer, self.width), "float32", codes.scale)
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
        if form.bits != FOUR:
            return np.ascontiguousarray(whole.astype(BYTE).transpose(0, 2, 3, 1))
        eights = whole.astype("uint32").reshape(*whole.shape[:3], -1, IN_WORD)
        words = np.bitwise_or.reduce(eights << np.arange(0, 32, FOUR, dtype="uint32"), axis=-1)
        return np.ascontiguousarray(words.transpose(0, 2, 3, 1)).view(WORD)

    def zeros(self, form: _Form, array: np.ndarray) -> np.ndarray:
        """Return the zero points as (panel, group, column), from the integers."""
        found = self._zeros_of(form, self.integers(array))[..., 0]
        return np.ascontiguousarray(found.transpose(0, 2, 1).astype(form.zero_type))

    @staticmethod
    def _zeros_of(form: _Form, whole: np.ndarray) -> np.ndarray:
        """Return the zero points of (panel, column, group, step): what makes the least integer the least code."""
        least = whole.min(-1, keepdims=True)
        return np.maximum(-least, 0) if form.bits == FOUR else np.iinfo(BYTE).min - least

    def scales(self, array: np.ndarray) -> np.ndarray:
        """Return the scales as (panel, group, column); those of columns that only pad are zero."""
        whole = self._columns_of(array, self.scale_steps, self.groups)
        padded = np.zeros((self.panels * self.width, self.groups), whole.dtype)
        padded[: len(whole)] = whole
        return np.ascontiguousarray(padded.reshape(self.panels, self.width, self.groups).transpose(0, 2, 1))

    def _columns_of(self, array: np.ndarray, steps: Sequence[int], along: int) -> np.ndarray:
        """Return a constant as (column, step or group)."""
        flat = np.ascontiguousarray(array).reshape(-1)
        strides = [step * flat.itemsize for step in steps]
        view = np.lib.stride_tricks.as_strided(flat, (*self.columns, along), strides, writeable=False)
        return view.reshape(-1, along)


def _layout(codes: Codes, columns: tuple, depth, extents: Mapping, lanes: int) -> _Layout | None:
    """Return the panels of a weight, or None if it, or its scales, have no constant strides."""
    sizes, deep = tuple(extents[var] for var in columns), extents[depth]
    group = _group(codes.scale, depth, deep)
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
    width = min(VECTORS, -(-prod(sizes) // lanes)) * lanes
    return _Layout(sizes, deep, groups, group, length, width, code_steps, scale_steps)


def _group(scale: ir.TensorLoad, depth, deep: int) -> int | None:
    """Return the steps along the depth that share a scale; None if they are no groups of whole words."""
    divided = [each for place in scale.indices for each in collect(place, tirx.FloorDiv) if each.a.same_as(depth)]
    uses = [var for place in scale.indices for var in collect(place, ir.Var) if var.same_as(depth)]
    if not uses:
        return deep
    if len(divided) != 1 or len(uses) != 1 or not isinstance(divided[0].b, tirx.IntImm):
        return None
    group = int(divided[0].b)
    return group if group % IN_WORD == 0 else None


def _steps(buffer, indices: Sequence, extents: Mapping) -> tuple[int, ...] | None:
    """Return the strides of an access that begins at the first element; None if they vary."""
    walk = Walk(extents)
    steps = [walk.stride(buffer, indices, var) for var in extents]
    first = sym.Analyzer().simplify(substitute(walk.offset(buffer, indices), {var: index(0) for var in extents}))
    whole = all(step is not None and step >= 0 for step in steps)
    return tuple(steps) if whole and isinstance(first, tirx.IntImm) and int(first) == 0 else None


def _form(layout: _Layout, arrays: Sequence[np.ndarray]) -> _Form:
    """Return the bits and zero points that fit the weights of all calls of a kernel."""
    if all(each.min() >= -_MIDDLE and each.max() < _MIDDLE for each in arrays):
        return _Form(FOUR, _MIDDLE)
    if all(each.min() >= 0 and each.max() <= _LARGEST for each in arrays):
        return _Form(FOUR, 0)
    groups = [layout.integers(each) for each in arrays]
    least, most = ([np.asarray(extreme(each, -1)) for each in groups] for extreme in (np.min, np.max))
    if all(np.all(high + np.maximum(-low, 0) <= _LARGEST) for low, high in zip(least, most)):
        return _Form(FOUR, None)
    low, high = np.iinfo(BYTE).min, np.iinfo(BYTE).max
    if all(low <= each.min() and each.max() <= high for each in arrays):
        return _Form(8, 0)
    return _Form(8, None, "int16")


def _buffer(shape: Sequence[int], dtype: str, like):
    name = like if isinstance(like, str) else like.source.name
    return tirx.decl_buffer([index(each) for each in shape], dtype, name)
