# SPDX-License-Identifier: Apache-2.0
"""Rewrite a kernel's float32 arithmetic to float16 (half), stage by stage.

1. A sum of products stays in float32; its factors and their product are halves. Readers of the sum read a half.
2. Any other sum (the mean of a row, the sum of a softmax, a sum of squares) and its terms are float32: the square of a
   number above 256 leaves half's range.
3. An element-wise stage is float32 if it reads a sum of kind 2, or if half cannot hold a number in it; otherwise half.
4. A maximum or minimum has the type of the values that it compares.
5. A value that only sums of products of halves read is stored as half, even if it is computed in float32: the softmax
   before a matmul.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import tvm_ffi
from tvm import ir, tirx

from ....analysis.row_chain import factors, summand
from ....ir.half import FLOAT, HALF, LARGEST, SMALLEST, as_half, exceeds_half
from ....ir.index_map import is_if_then_else
from ....ir.kernel import Kernel, Stage
from ....ir.walk import collect, loads

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_LOGIC = (tirx.And, tirx.Or)


_PRODUCTS = "sums of products: a half has 11 bits, and a large sum would lose what is added to it"
_STATISTICS = f"sums of a row, and what is made of them: squares and long sums leave half's range, {LARGEST:.0f}"
_NUMBERS = f"a number in it, or one that it reads, is beyond {LARGEST:.0f}, or too near to zero for a half"


def in_half(kernel: Kernel, beyond: Sequence = ()) -> tuple[Kernel, list[str]]:
    """Return the kernel in half arithmetic, and the reasons why parts of it stay float32.

    Its inputs and outputs keep their types.

    Parameters
    ----------
    kernel : Kernel
        Each of its stages is one store.
    beyond : sequence of buffers
        Inputs with finite numbers beyond half's range, which must not become infinite: the softmax of a fully masked
        row would be NaN. Numbers of a mask (`_is_mask`) are rounded to the nearest finite half; stages that read any
        other of these inputs are computed in float32.
    """
    halved = _Halved(kernel, beyond)
    return halved.kernel(), list(halved.reasons)


def _holds(value) -> bool:
    """Whether half can hold the literals in a value, rounded: each is zero or within `SMALLEST` and `LARGEST`."""
    numbers = [abs(imm.value) for imm in collect(value, tirx.FloatImm)]
    return all(number == 0 or SMALLEST <= number <= LARGEST for number in numbers)


def _has_square(parts: Sequence) -> bool:
    """Whether two factors of a product are the same number, as in the statistics of a norm."""
    return any(tvm_ffi.structural_equal(one, other) for one, other in combinations(parts, 2))


def _is_mask(kernel: Kernel, buffer) -> bool:
    """Whether an input is only read as a summand, and large numbers in it reach no result of the kernel."""
    added = [part for stage in kernel.stages for add in collect(stage.body, tirx.Add) for part in (add.a, add.b)]
    direct = sum(isinstance(part, ir.TensorLoad) and part.source.same_as(buffer) for part in added)
    every = sum(load.source.same_as(buffer) for stage in kernel.stages for load in stage.loads)
    return direct == every and not exceeds_half(kernel, [buffer])


class _Halved:
    def __init__(self, original: Kernel, beyond: Sequence = ()):
        self.original = original
        self.masks = [buffer for buffer in beyond if _is_mask(original, buffer)]
        self.beyond = [buffer for buffer in beyond if not any(buffer.same_as(mask) for mask in self.masks)]
        self.products: list = []  # float32 sums that are read as halves
        self.reasons: dict[str, None] = {}  # in order
        self.new: dict = {}  # intermediate float32 buffer -> buffer of halves

    def kernel(self) -> Kernel:
        return replace(self.original, stages=tuple(map(self._stage, self.original.stages)))

    def _stage(self, stage: Stage) -> Stage:
        buffer = stage.body.buffer
        term = summand(stage)
        if str(buffer.dtype) not in (FLOAT, HALF):
            return self._stored(stage, stage.body.value, buffer)
        if term is not None:
            return self._sum(stage, term)
        sums_up = stage.reduction and not isinstance(stage.body.value, (tirx.Max, tirx.Min))
        kept = stage.reduction and buffer in self.original.outputs
        narrow = not sums_up and not kept and self._may_be_half(stage.body.value, buffer)
        if not narrow and not kept:
            self.reasons[_STATISTICS if sums_up or self._may_hold(stage.body.value) else _NUMBERS] = None
        factor = not stage.reduction and self._only_multiplied(buffer)
        if (narrow or factor) and str(buffer.dtype) == FLOAT and buffer not in self.original.outputs:
            self.new[buffer] = tirx.decl_buffer(buffer.shape, HALF, buffer.name, scope=buffer.scope())
        value = self._half(stage.body.value) if narrow else self._float(stage.body.value)
        return self._stored(stage, value, self.new.get(buffer, buffer), narrow)

    def _stored(self, stage: Stage, value, buffer, narrow: bool = False) -> Stage:
        """Return the stage with another value and buffer; casts make the types agree."""

        def fitting(expr):
            return expr if str(expr.ty.dtype) == str(buffer.dtype) else expr.astype(str(buffer.dtype))

        init = stage.init
        if init is not None and buffer is not stage.body.buffer:
            start = self._half(init.value) if narrow else init.value
            init = tirx.BufferStore(buffer, fitting(start), init.indices)
        return replace(stage, body=tirx.BufferStore(buffer, fitting(value), stage.body.indices), init=init)

    def _sum(self, stage: Stage, term) -> Stage:
        parts = [part for part in factors(term) if loads(part)]
        total = stage.body.buffer[tuple(stage.body.indices)]
        if len(parts) > 1 and not _has_square(parts) and self._may_be_half(term, stage.body.buffer):
            self.products.append(stage.body.buffer)
            self.reasons[_PRODUCTS] = None
            return self._stored(stage, total + self._half(term).astype(FLOAT), stage.body.buffer)
        self.reasons[_STATISTICS] = None
        return self._stored(stage, total + self._float(term), stage.body.buffer)

    def _may_hold(self, value) -> bool:
        """Whether half can hold the literals in a value, and the inputs that it reads."""
        return _holds(value) and not any(load.source.same_as(b) for load in loads(value) for b in self.beyond)

    def _only_multiplied(self, buffer) -> bool:
        """Whether sums of products alone read an intermediate result, as a factor beside halves."""
        readers = [s for s in self.original.stages if any(load.source.same_as(buffer) for load in s.loads)]
        return bool(readers) and all(self._multiplies(reader, buffer) for reader in readers)

    def _multiplies(self, stage: Stage, buffer) -> bool:
        term = summand(stage) if isinstance(stage.body, tirx.BufferStore) else None
        parts = [part for part in factors(term) if loads(part)] if term is not None else []
        mine = [part for part in parts if isinstance(part, ir.TensorLoad) and part.source.same_as(buffer)]
        others = [load for part in parts if part is not mine[0] for load in loads(part)] if len(mine) == 1 else []
        return bool(others) and all(load.source in self.original.inputs for load in others)

    def _may_be_half(self, value, own) -> bool:
        """Whether half can hold the numbers in a value for buffer `own`, and the value reads no float32 sum."""
        statistics = [b for b in self.original.intermediates if b not in self.products and b not in self.new]
        floats = [b for b in statistics if str(b.dtype) == FLOAT and not b.same_as(own)]
        return self._may_hold(value) and not any(load.source.same_as(b) for load in loads(value) for b in floats)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _float(self, value):
        """Return the float32 expression, with its loads of halves widened."""
        return tvm_ffi.structural_map(value, (ir.TensorLoad, self._widened))

    def _widened(self, load):
        new = self.new.get(load.source)
        return load if new is None else new[tuple(load.indices)].astype(FLOAT)

    def _half(self, value):
        """Return a float32 expression in halves; others (indices, conditions) keep their type."""
        if not isinstance(value.ty, ir.PrimType):
            return value
        dtype = str(value.ty.dtype)
        if isinstance(value, tirx.Cast) and dtype in (FLOAT, HALF):
            inner = self._half(value.value)
            return inner if str(inner.ty.dtype) == HALF else inner.astype(HALF)
        if isinstance(value, ir.TensorLoad):
            load = self.new[value.source][tuple(value.indices)] if value.source in self.new else value
            if any(value.source.same_as(mask) for mask in self.masks):
                load = tirx.max(tirx.min(load, tirx.const(LARGEST, FLOAT)), tirx.const(-LARGEST, FLOAT))
            return as_half(load) if str(load.ty.dtype) == FLOAT else load
        if isinstance(value, tirx.FloatImm):
            return tirx.FloatImm(HALF, min(max(value.value, -LARGEST), LARGEST)) if dtype == FLOAT else value
        if isinstance(value, (*_BINARY, *_COMPARISONS, *_LOGIC)):
            return type(value)(self._half(value.a), self._half(value.b))
        if isinstance(value, tirx.Not):
            return tirx.Not(self._half(value.a))
        if isinstance(value, tirx.Select):
            return tirx.Select(*map(self._half, (value.condition, value.true_value, value.false_value)))
        if is_if_then_else(value):
            return tirx.if_then_else(*map(self._half, value.args))
        if isinstance(value, ir.Call):
            args = [self._half(arg) for arg in value.args]
            return tirx.call_intrin(HALF if dtype == FLOAT else dtype, value.op, *args)
        return self._float(value)
