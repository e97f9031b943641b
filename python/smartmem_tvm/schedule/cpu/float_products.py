# SPDX-License-Identifier: Apache-2.0
"""FloatProducts: integer sums that floats hold exactly are added up in floats, which CPUs multiply fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import Kernel, Opaque, Stage, parse, shape_of
from ...ir.pairs import INTEGER, ends_of
from ..core.decisions import given_rule
from ..core.expressions import replace_loads
from ..core.reduction import combiner_of, combiner_of_parts
from ..core.rule import is_open
from ..core.words import load_of
from .small_integers import copies_before, least_and_largest

FLOAT = "float32"
_EXACT = 1 << 24
"""Numbers. By definition of IEEE 754, each integer up to this one is a float32."""

Known = Callable[[], list[np.ndarray]]


@module_pass(opt_level=0, name="FloatProducts")
class FloatProducts:
    """Add up products of small integers in float32 where no sum can leave the integers that float32 holds exactly.

    Before, where operands are no pairs (`PairProducts`), as those of a depthwise convolution::

        C[c, y, x] += int32(a[c, y + p, x + q]) * int32(w[c, p, q])

    After, with ``a``, a padded copy, and ``w``, a constant, of floats::

        f[c, y, x] += a[c, y + p, x + q] * w[c, p, q];   C = int32(f)

    Each product and each partial sum is an integer of at most 24 bits, so the order of additions and fused
    multiply-adds change nothing. A multiplication of 32-bit integers takes several times as long as one of floats.

    Refuses (leaves as they are) sums that may have more bits, by the largest numbers of both operands and the number of
    products, or by the magnitudes of a constant's numbers; sums that are a result of the kernel; and dot products of
    packed integers.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants, calls, found = constant_operands(mod), private_calls(mod), {}
        for gvar, func in mod.functions_items():
            if not (isinstance(func, tirx.PrimFunc) and is_open(func) and given_rule(func) is None):
                continue
            try:
                kernel = parse(func)
            except Opaque:
                continue
            values = {n: lambda n=n, gvar=gvar: constants_of(calls[gvar], n) for n in constants.get(gvar, ())}
            changed = in_floats(kernel, values)
            if changed is not None:
                found[gvar] = changed
        return exchange(mod, found)


def in_floats(kernel: Kernel, constants: dict[int, Known]) -> Exchange | None:
    """Return the kernel with its sums in floats, None if each might be inexact, or is no sum of integer products.

    Parameters
    ----------
    constants : dict
        Position of a constant among the kernel's inputs -> function that returns its values in all calls.
    """
    whole, forms = kernel, {}
    sums = [n for n, stage in enumerate(kernel.stages) if stage.reduction]
    for at in sums:
        changed = _sum_in_floats(kernel, at, constants)
        if changed is not None:
            kernel, forms = changed.kernel, {**forms, **changed.forms}
    return Exchange(kernel, forms) if kernel is not whole else None


def _sum_in_floats(kernel: Kernel, at: int, constants: dict[int, Known]) -> Exchange | None:
    stage = kernel.stages[at]
    if combiner_of_parts(stage) is None:
        return None
    _, term = combiner_of(stage)
    if not isinstance(term, tirx.Mul) or str(term.ty.dtype) != INTEGER:
        return None
    if any(stage.body.buffer.same_as(each) for each in kernel.outputs):
        return None
    floats = _Floats(kernel, at, constants)
    return floats.changed(term) if floats.largest(term) <= _EXACT else None


class _Floats:
    """A kernel whose sum at stage `at` becomes one of floats; `constants` as for `in_floats`."""

    def __init__(self, kernel: Kernel, at: int, constants: dict[int, Known]):
        self.kernel, self.stage, self.at = kernel, kernel.stages[at], at
        self.made = copies_before(kernel, at)
        self.known = {kernel.inputs[n]: each for n, each in constants.items()}
        self.positions = {kernel.inputs[n]: n for n in constants}

    def largest(self, term: tirx.Mul) -> float:
        """Return a bound of the magnitudes of all partial sums; infinite if an operand's numbers are not known."""
        ends = [ends_of(each, self._ends) for each in (term.a, term.b)]
        if any(each is None for each in ends):
            return float("inf")
        most = [max(abs(low), abs(high)) for low, high in ends]
        bounds = [most[0] * most[1] * prod(self.stage.extents[var] for var in self.stage.reduction)]
        for operand, other in ((term.a, most[1]), (term.b, most[0])):
            total = self._magnitudes(operand)
            bounds += [] if total is None else [total * other]
        return min(bounds)

    def _ends(self, load) -> tuple[int, int] | None:
        if load.source in self.made:
            return ends_of(self.made[load.source].body.value, self._ends)
        return least_and_largest(self.known[load.source]()) if load.source in self.known else None

    def _magnitudes(self, operand) -> int | None:
        """Return the largest sum of the magnitudes of a constant's numbers that meet in one result; else None."""
        load = load_of(operand)
        if load is None or load.source not in self.known:
            return None
        places = {hash(place): axis for axis, place in enumerate(load.indices) if isinstance(place, ir.Var)}
        along = [places.get(hash(var)) for var in self.stage.reduction if self.stage.extents[var] > 1]
        if None in along:
            return None
        sums = (np.abs(each.astype("int64")).sum(tuple(along)).max(initial=0) for each in self.known[load.source]())
        return int(max(sums))

    def changed(self, term: tirx.Mul) -> Exchange:
        """Return the kernel with the sum, its padded copies and its constants in floats."""
        old, indices = self.stage.body.buffer, self.stage.body.indices
        sums, stages, inputs, forms = _of_floats(old), list(self.kernel.stages), list(self.kernel.inputs), {}
        stored = {load.source: _of_floats(load.source) for load in map(load_of, (term.a, term.b)) if self._alone(load)}
        factors = []
        for operand in (term.a, term.b):
            load = load_of(operand)
            new = stored.get(load.source) if load is not None else None
            factors.append(operand.astype(FLOAT) if new is None else new[tuple(load.indices)])
        for source, new in stored.items():
            if source in self.positions:
                inputs[self.positions[source]], forms[self.positions[source]] = new, _as_floats
            else:
                n = next(n for n, each in enumerate(stages) if each.body.buffer.same_as(source))
                body = tirx.BufferStore(new, stages[n].body.value.astype(FLOAT), stages[n].body.indices)
                stages[n] = replace(stages[n], body=body)
        body = tirx.BufferStore(sums, sums[tuple(indices)] + factors[0] * factors[1], indices)
        start = tirx.BufferStore(sums, tirx.const(0, FLOAT), self.stage.init.indices)
        stages[self.at] = replace(self.stage, body=body, init=start)
        for n in range(self.at + 1, len(stages)):
            stages[n] = _reading(stages[n], old, sums)
        return Exchange(Kernel(tuple(inputs), self.kernel.outputs, tuple(stages)), forms)

    def _alone(self, load) -> bool:
        """Whether a load is the only one of a padded copy or a constant."""
        if load is None or not (load.source in self.made or load.source in self.positions):
            return False
        readers = [each for stage in self.kernel.stages for each in stage.loads if each.source.same_as(load.source)]
        return len(readers) == 1


def _of_floats(buffer):
    dtype = buffer.shape[0].ty.dtype if len(buffer.shape) else INTEGER
    return tirx.decl_buffer([tirx.const(size, dtype) for size in shape_of(buffer)], FLOAT, buffer.name, layout=None)


def _as_floats(array: np.ndarray) -> np.ndarray:
    return array.astype(FLOAT)


def _reading(stage: Stage, old, new) -> Stage:
    """Return a stage that reads integers as the floats that hold them."""

    def read(load):
        return new[tuple(load.indices)].astype(INTEGER) if load.source.same_as(old) else None

    body = replace_loads(stage.body, read)
    init = None if stage.init is None else replace_loads(stage.init, read)
    return replace(stage, body=body, init=init)
