# SPDX-License-Identifier: Apache-2.0
"""Kernels that a model of an open length has besides its operators: positions behind the length get a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tvm
from tvm import ir, relax, tirx

from .kernel import Kernel, Stage, emit

LENGTH = "smartmem_length"
"""Name of the input, one int64 number, that the functions of a model with an open length have after its own."""
RECURRENT = "smartmem.recurrent"
"""Attribute of a kernel whose loop runs over steps: the places of the operand with the steps, which are its first axis,
and of the numbers of steps of each sequence; -1 if it has none. Steps behind that number write zeros."""
LOWEST, HIGHEST, ZERO = "lowest", "highest", "zero"
"""Numbers that take the place of what is behind the length."""
_TYPE = "int64"


class Extent(NamedTuple):
    """Elements along an axis for a length ``n``: ``each * ((n + more) // step)``.

    Attributes
    ----------
    each : int
        Elements of a position.
    more, step : int
        A window that goes on by two makes one position of two. ``more`` has the padding, and may be negative.
    """

    each: int = 1
    more: int = 0
    step: int = 1

    def of(self, length):
        """Return the elements for a length, which is a number or an expression."""
        if isinstance(length, int):
            return self.each * ((length + self.more) // self.step)
        count = length + tirx.const(self.more, _TYPE) if self.more else length
        count = tirx.floordiv(count, tirx.const(self.step, _TYPE)) if self.step > 1 else count
        return count * tirx.const(self.each, _TYPE) if self.each > 1 else count

    @property
    def of_one(self) -> Extent:
        """The same with one element for each position."""
        return self._replace(each=1)


PLAIN, RECIPROCAL, ROOT, RECIPROCAL_ROOT = "n", "1/n", "sqrt(n)", "1/sqrt(n)"
"""Functions of a number of positions that constants of a model may be."""
_FUNCTIONS: dict[str, Callable] = {
    PLAIN: lambda n: n,
    RECIPROCAL: lambda n: 1 / n,
    ROOT: lambda n: n**0.5,
    RECIPROCAL_ROOT: lambda n: n**-0.5,
}


class Counted(NamedTuple):
    """A number that follows from the length: ``factor * function(positions) + offset``.

    Attributes
    ----------
    extent : Extent
        The positions, for a length.
    function : str
        `PLAIN`, `RECIPROCAL`, `ROOT` or `RECIPROCAL_ROOT`.
    factor, offset : float
    """

    extent: Extent
    function: str = PLAIN
    factor: float = 1
    offset: float = 0

    def of(self, length: int) -> float:
        """Return the number for a length."""
        return self.factor * _FUNCTIONS[self.function](self.extent.of(length)) + self.offset

    def written(self, length, dtype: str):
        """Return the number for a length that is an expression, in a type."""
        positions = self.extent.of(length)
        if self.function == PLAIN:
            number = positions * tirx.const(int(self.factor), _TYPE) if self.factor != 1 else positions
            exact = float(self.factor).is_integer() and float(self.offset).is_integer()
            if exact:
                return tirx.Cast(dtype, number + tirx.const(int(self.offset), _TYPE) if self.offset else number)
        number = tirx.Cast(dtype, positions)
        root = tirx.sqrt(number) if self.function in (ROOT, RECIPROCAL_ROOT) else number
        factor = tirx.const(self.factor, dtype)
        value = factor / root if self.function in (RECIPROCAL, RECIPROCAL_ROOT) else factor * root
        return value + tirx.const(self.offset, dtype) if self.offset else value


def length_parameter() -> relax.Var:
    """Return the parameter of a function that takes the length."""
    return relax.Var(LENGTH, relax.TensorType([1], _TYPE))


def masked(shape: tuple[int, ...], dtype: str, extents: Mapping[int, Extent], fill: str) -> tirx.PrimFunc:
    """Return a kernel ``(x, length) -> y``: ``x`` before the length, and a number behind it.

    Parameters
    ----------
    shape : tuple of int
    dtype : str
    extents : mapping
        Axis along which positions lie -> the elements before the length.
    fill : str
        `ZERO`, `LOWEST` or `HIGHEST`.
    """
    x, y, length, places = _parts(shape, dtype)
    inside = [places[axis] < extent.of(length[tirx.const(0, _TYPE)]) for axis, extent in extents.items()]
    condition = inside[0]
    for more in inside[1:]:
        condition = tirx.And(condition, more)
    value = tirx.Select(condition, x[tuple(places)], _number(fill, dtype))
    return _pointwise("mask_positions", shape, places, (x, length), y, value)


def scaled(shape: tuple[int, ...], dtype: str, capacity: int, extents: Sequence[Extent]) -> tirx.PrimFunc:
    """Return a kernel ``(x, length) -> y`` that makes means over the capacity means over the length.

    Parameters
    ----------
    capacity : int
        The length for which the mean was taken.
    extents : sequence of Extent
        Of each axis along which it was taken.
    """
    x, y, length, places = _parts(shape, dtype)
    value = x[tuple(places)]
    for extent in extents:
        count = extent.of_one.of(length[tirx.const(0, _TYPE)])
        value = value * (tirx.const(float(extent.of_one.of(capacity)), dtype) / tirx.Cast(dtype, count))
    return _pointwise("mean_of_positions", shape, places, (x, length), y, value)


def counted(shape: tuple[int, ...], dtype: str, number: Counted) -> tirx.PrimFunc:
    """Return a kernel ``length -> y``: a tensor of one number that follows from the length."""
    _, y, length, places = _parts(shape, dtype)
    value = number.written(length[tirx.const(0, _TYPE)], dtype)
    return _pointwise("number_of_positions", shape, places, (length,), y, value)


def from_the_end(
    shape: tuple[int, ...], dtype: str, result: tuple[int, ...], first: Mapping[int, int | tuple[Extent, int]]
) -> tirx.PrimFunc:
    """Return a kernel ``(x, length) -> y`` that copies a part of ``x``.

    Parameters
    ----------
    result : tuple of int
        The shape of the part.
    first : mapping
        Axis -> its first element; of an axis with positions their extent, and how many before its end.
    """
    x, _, length, _ = _parts(shape, dtype)
    y, places = tirx.decl_buffer(result, dtype, "y"), [tirx.Var(f"i{axis}", _TYPE) for axis in range(len(result))]
    read = list(places)
    for axis, begin in first.items():
        if isinstance(begin, tuple):
            extent, count = begin
            begin = tirx.max(extent.of(length[tirx.const(0, _TYPE)]) - tirx.const(count, _TYPE), tirx.const(0, _TYPE))
            read[axis] = begin + places[axis]
        elif begin:
            read[axis] = places[axis] + tirx.const(begin, _TYPE)
    return _pointwise("last_positions", result, places, (x, length), y, x[tuple(read)])


def _parts(shape: tuple[int, ...], dtype: str) -> tuple:
    """Return the operand, the result, the length, and an iterator for each axis."""
    buffers = ((shape, dtype, "x"), (shape, dtype, "y"), ([1], _TYPE, "n"))
    return *(tirx.decl_buffer(*each) for each in buffers), [tirx.Var(f"i{axis}", _TYPE) for axis in range(len(shape))]


def _number(fill: str, dtype: str):
    if fill == ZERO:
        return tirx.const(0, dtype)
    if "float" in dtype:
        return tirx.const(float("-inf" if fill == LOWEST else "inf"), dtype)
    return tvm.tirx.min_value(dtype) if fill == LOWEST else tvm.tirx.max_value(dtype)


def _pointwise(name: str, shape: tuple[int, ...], places: list, inputs: tuple, output, value) -> tirx.PrimFunc:
    iters = tuple(
        tirx.IterVar(ir.Range(tirx.const(0, _TYPE), tirx.const(size, _TYPE)), place, tirx.IterVar.DataPar)
        for size, place in zip(shape, places, strict=True)
    )
    return emit(Kernel(inputs, (output,), (Stage(name, iters, tirx.BufferStore(output, value, places)),)))
