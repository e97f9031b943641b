# SPDX-License-Identifier: Apache-2.0
"""Weights in panels: packed at compile time in the order in which the inner loops of matmuls read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod

import numpy as np
from tvm import IRModule, sym, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target
from tvm_ffi import structural_equal

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import DECISIONS, Kernel, substitute
from ...ir.several_sizes import size_functions
from ..choose import before, first_of
from ..core.decisions import Decision, deciding, given_rule, given_values
from ..core.expressions import Walk, fused_index, replace_loads, uses
from ..core.is_product import from_first_sum
from ..core.nest import index
from ..core.rule import exchange_open, is_open, target_of
from ..cpu import machine
from ..cpu.attention import chain_in
from ..cpu.machine import FLOAT_BYTES
from ..cpu.matmul import Matmul
from ..cpu.matmul_plan import MatmulPlan
from ..cpu.params import CpuParams
from ..cpu.slide import Slide
from .common_forms import FormReader, in_common, values_of


@module_pass(opt_level=0, name="PackWeights")
class PackWeights:
    """Store a constant that a matmul multiplies by in the panels of the matmul's register tile.

    Before, with ``b`` of 768 x 3072 elements::

        C[i, j] += A[i, k] * b[k, j]

    After, with ``b`` of 192 x 768 x 16 elements::

        C[i, j] += A[i, k] * b[j // 16, k, j % 16]

    The rule for matmuls then reads the panels in place. Copying them in every inference took up to a third of its time,
    mostly to wait for memory that is read across its rows. Kernels of several sizes choose the width of panels in
    common (`common_forms`).

    Refuses (leaves as they are) operands that are computed, that the kernel also reads elsewhere, or that are no
    strided view of the constant, and kernels with callers other than this module's ``call_tir``.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        return _in_common_panels(mod) if size_functions(mod) else exchange_open(mod, _packed)


def _in_common_panels(mod: IRModule) -> IRModule:
    """Pack the weights of several sizes, in panels that other sizes read as well, where that is cheap enough."""
    calls, readers, products, found = private_calls(mod), {}, {}, {}
    constants = {gvar: each for gvar, each in constant_operands(mod).items() if is_open(mod[gvar])}
    far = _are_far(calls, constants)
    for gvar, positions in constants.items():
        func, target = mod[gvar], target_of(mod[gvar], gvar.name_hint)
        if DECISIONS in (func.attrs or {}):
            found[gvar] = _packed(func, positions, target)
            continue
        with deciding(func) as taken:
            packing = packing_of(func, positions, target)
        if packing is not None:
            products[gvar], found[gvar] = _Product(packing, taken[0], far), packing.exchange
            read = values_of(constants_of(calls[gvar], packing.position))
            readers[gvar] = FormReader(packing.form, read, products[gvar].price, products[gvar].size)
    given = mod.clone()
    for gvar, form in in_common(mod, readers).items():
        func = mod[gvar].with_attr(DECISIONS, products[gvar].decisions(form))
        given.update_func(gvar, func)
        found[gvar] = _packed(func, constants[gvar], target_of(func, gvar.name_hint))
    return exchange(given, {gvar: each for gvar, each in found.items() if each is not None})


def _are_far(calls: Mapping, constants: Mapping) -> bool:
    """Whether the weights of all kernels, each once, are more than the last-level cache holds."""
    arrays = {}
    for gvar, positions in constants.items():
        for position in positions:
            arrays |= {id(each): each.nbytes for each in constants_of(calls[gvar], position)}
    return sum(arrays.values()) > machine.LAST_LEVEL_BYTES


@dataclass(frozen=True, eq=False)
class _Product:
    """A product with a constant in panels, and its plans for panels of other widths.

    Attributes
    ----------
    packing : Packing
    decision : Decision
        The rule's own.
    far : bool
        Whether the weights of an inference are too many for the caches, so that the product takes no less time than
        they take from memory, in panels of any width.
    """

    packing: Packing
    decision: Decision
    far: bool = False

    def plan(self, form: tuple) -> MatmulPlan | None:
        """Return the plan for a form, None if its panels are not as wide, or the constant is seen in another way."""
        own = self.packing
        if form == own.form:
            return own.plan
        if form[1:] != own.form[1:]:
            return None
        plan = MatmulPlan(own.plan.contraction, own.plan.params, own.plan.constants, form[0])
        return plan if plan.tile.width == form[0] else None

    def price(self, form: tuple) -> float | None:
        """Return the cycles of the product with a form."""
        plan = self.plan(form)
        if plan is None:
            return None
        rate = plan.params.memory_bytes
        return max(plan.price.cycles, self.size(form) / rate) if self.far else plan.price.cycles

    def size(self, form: tuple) -> int:
        """Return the bytes of the constant in a form."""
        batch, columns, depth = map(prod, form[1])
        return FLOAT_BYTES * batch * depth * -(-columns // form[0]) * form[0]

    def decisions(self, form: tuple) -> dict[str, int | bool]:
        """Return the attribute that gives the plan for a form."""
        choice = self.plan(form).choice(bool(self.decision.values["swapped"]))
        return given_values([replace(self.decision, values=asdict(choice))])


def _packed(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> Exchange | None:
    with deciding(func):
        found = packing_of(func, positions, target)
    return found.exchange if found else None


@dataclass(frozen=True, eq=False)
class Packing:
    """One constant operand of a kernel in panels.

    Attributes
    ----------
    kernel : Kernel
        The kernel that reads the panels.
    position : int
        Position of the operand among the kernel's inputs.
    extents, steps : tuple of tuple of int
        Extents of the iterators of batch, columns and depth, and the operand's strides along them in elements.
    plan : MatmulPlan
        The plan of the product that reads the panels.
    """

    kernel: Kernel
    position: int
    extents: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    plan: MatmulPlan

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.plan.tile.width

    @property
    def form(self) -> tuple:
        """What decides in which order the values are."""
        return self.width, self.extents, self.steps

    @property
    def exchange(self) -> Exchange:
        """The kernel and the panels in place of the one that reads the constant as it is."""
        return Exchange(self.kernel, {self.position: self.pack})

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the operand's values as (batch, panel, depth, column); columns beyond the last one are zero."""
        flat, shape = np.ascontiguousarray(array).reshape(-1), sum(self.extents, ())
        strides = [step * flat.itemsize for step in sum(self.steps, ())]
        batch, columns, depth = (int(np.prod(each)) for each in self.extents)
        whole = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False).reshape(batch, columns, depth)
        padded = np.zeros((batch, -(-columns // self.width) * self.width, depth), array.dtype)
        padded[:, :columns] = whole
        return np.ascontiguousarray(padded.reshape(batch, -1, self.width, depth).swapaxes(2, 3))


def packing_of(func: tirx.PrimFunc, positions: Collection[int], target: Target) -> Packing | None:
    """Return the packing of the constant that a kernel multiplies by, or None if there is none to pack.

    Parameters
    ----------
    func : PrimFunc
        Unscheduled.
    positions : collection of int
        Positions of the parameters that are constants.
    """
    rule = given_rule(func)
    if rule not in (None, Matmul().name):
        return None
    # `Depthwise` is no obstacle: its weights in panels of one column are in the same order as before.
    rivals = [each for each in before(Matmul) if isinstance(each, Slide)]

    def packing(kernel: Kernel, params: CpuParams) -> Packing | None:
        if rule is None and first_of(rivals, kernel, params) is not None:
            return None
        first, run = from_first_sum(kernel)
        if first and chain_in(func, target) is not None:
            return None  # `RowChains` takes it, and computes the stages in front of its products in the cache
        plan = Matmul.plan(run, params, [kernel.inputs[position] for position in positions])
        return _packing(kernel, first, plan) if plan is not None and plan.right_constant else None

    return Matmul().ask(func, target, packing)


def _packing(kernel: Kernel, first: int, plan: MatmulPlan) -> Packing | None:
    contraction, stage = plan.contraction, kernel.stages[first]
    operand, extents = contraction.right, contraction.reduction.extents
    readers = [load for each in kernel.stages for load in each.loads if load.source.same_as(operand.source)]
    position = next(i for i, buffer in enumerate(kernel.inputs) if buffer.same_as(operand.source))
    groups = (tuple(uses(operand, contraction.batch)), contraction.columns, contraction.depth)
    vars_ = sum(groups, ())
    walk = Walk(extents)
    steps = {var: walk.load_stride(operand, var) for var in vars_}
    origin = walk.analyzer.simplify(walk.offset(operand.source, operand.indices))
    if not all(structural_equal(each, operand) for each in readers) or not all(var in stage.extents for var in vars_):
        return None
    if any(step is None or step < 0 for step in steps.values()) or walk_start(origin, vars_) != 0:
        return None
    width = plan.tile.width
    sizes = tuple(tuple(extents[var] for var in group) for group in groups)
    packed = _buffer(operand.source, sizes, width)
    batch, column, depth = (fused_index(group, extents) for group in groups)
    width_ = index(width)
    at = (batch, tirx.floordiv(column, width_), depth, tirx.floormod(column, width_))
    body = replace_loads(stage.body, lambda load: packed[at] if load.source.same_as(operand.source) else None)
    inputs = tuple(packed if i == position else buffer for i, buffer in enumerate(kernel.inputs))
    stages = (*kernel.stages[:first], replace(stage, body=body), *kernel.stages[first + 1 :])
    changed = Kernel(inputs, kernel.outputs, stages)
    return Packing(changed, position, sizes, tuple(tuple(steps[v] for v in group) for group in groups), plan)


def walk_start(origin, vars_) -> int | None:
    """Return the offset of an operand's first element, None if it is not constant."""
    first = sym.Analyzer().simplify(substitute(origin, {var: index(0) for var in vars_}))
    return int(first) if isinstance(first, tirx.IntImm) else None


def _buffer(old, sizes: Sequence[Sequence[int]], width: int):
    batch, columns, depth = map(prod, sizes)
    shape = [batch, -(-columns // width), depth, width]
    return tirx.decl_buffer([index(each) for each in shape], old.ty.dtype, old.name)
