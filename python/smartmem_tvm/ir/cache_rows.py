# SPDX-License-Identifier: Apache-2.0
"""Kernels that write new rows into a cache, and the attribute that names a function's caches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .._tvm import mapped
from .kernel import CACHE_AXIS, Kernel, substitute

CACHES = "smartmem.caches"
"""Function attribute: its caches as JSON, one `Cache` each."""
FIXED_FROM = "smartmem.fixed_from"
"""Function attribute of `FixAddresses`: the number of the parameter from which on each has one address in all calls."""


@dataclass(frozen=True)
class Cache:
    """A tensor that a function takes, writes rows into, and gives back.

    Attributes
    ----------
    input, output : int
        Positions of the old and the new state among the function's inputs and results.
    name : str
        Name of the input.
    axis : int
        The dimension that counts its rows.
    sequences : int
        How many sequences have rows of their own; 1 if new rows of all are written at one place.
    circular : bool
        Whether the row after the last one is the first one, so that a sequence may have more rows than there are.
    """

    input: int
    output: int
    name: str
    axis: int
    sequences: int = 1
    circular: bool = False


def caches_of(function: relax.Function) -> list[Cache]:
    """Return the caches of a function, in the order of its inputs."""
    attrs = function.attrs or {}
    return [Cache(**each) for each in json.loads(str(attrs[CACHES]))] if CACHES in attrs else []


def with_caches(function: relax.Function, caches: Sequence[Cache]) -> relax.Function:
    """Return the function with the attribute of its caches."""
    return function.with_attr(CACHES, json.dumps([asdict(each) for each in caches]))


def rows_writer(shape: Sequence[int], dtype: str, rows: Sequence[int], axis: int) -> tirx.PrimFunc:
    """Return the kernel that makes a cache with new rows: a new tensor.

    Its arguments are the cache (`shape`), the new rows (the same, but for ``rows[1]`` along `axis`), their numbers
    (`rows`, int64: one line for each sequence, or one for all; a negative number counts from the end), and the result.
    A row whose number is not in the cache is left out.

    Parameters
    ----------
    rows : (int, int)
        1 or the size of the cache's first dimension, and the number of new rows.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"tirx.noalias": True, CACHE_AXIS: axis})
        cache = T.arg("cache", T.Buffer(_sizes(shape), dtype))
        fresh = T.arg("fresh", T.Buffer(_sizes(_new_rows(shape, rows, axis)), dtype))
        numbers = T.arg("rows", T.Buffer(_sizes(rows), "int64"))
        written = T.arg("written", T.Buffer(_sizes(shape), dtype))
        with _points("copy", shape, [cache], [written]) as at:
            T.buffer_store(written, cache[tuple(at)], at)
        with _points("write", _new_rows(shape, rows, axis), [cache, fresh, numbers], [written]) as at:
            _write(written, fresh[tuple(at)], numbers[_number_of(rows, axis, at)], axis, at)
    return builder.get()


def rows_in_place(
    shape: Sequence[int],
    dtype: str,
    rows: Sequence[int],
    axis: int,
    made: Sequence[tuple[Kernel | None, Kernel | None]],
) -> tirx.PrimFunc:
    """Return the kernel that writes rows into caches of one shape, where they are.

    Its arguments are the caches, and then, for each, what its new rows and their numbers are made of.

    Parameters
    ----------
    shape, dtype, rows, axis
        As for `rows_writer`, of each cache.
    made : sequence of (Kernel or None, Kernel or None)
        For each cache, what makes its new rows, and their numbers, one pointwise stage: its inputs are arguments. None:
        the rows, or the numbers, are an argument.
    """
    new = _new_rows(shape, rows, axis)
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"tirx.noalias": True, CACHE_AXIS: axis})
        names = [f"cache_{number}" if number else "cache" for number in range(len(made))]
        caches = [T.arg(name, T.Buffer(_sizes(shape), dtype)) for name in names]
        read = [
            [
                [T.arg(name, T.Buffer(sizes, kind, scope=scope)) for name, sizes, kind, scope in each]
                for each in (_read("fresh", new, dtype, rows_made), _read("rows", rows, "int64", counted))
            ]
            for rows_made, counted in made
        ]
        every = [*caches, *(tensor for each in read for part in each for tensor in part)]
        with _points("write", [len(made), *new], every, caches) as (which, *at):
            for number, (cache, (values, numbers), kernels) in enumerate(zip(caches, read, made, strict=True)):
                with T.If(which.equal(_int(number))), T.Then():
                    place = _value(kernels[1], numbers, _number_of(rows, axis, at))
                    _write(cache, _value(kernels[0], values, at), place, axis, at)
    return builder.get()


def _new_rows(shape: Sequence[int], rows: Sequence[int], axis: int) -> list[int]:
    """Return the shape of the new rows of a cache."""
    return [rows[1] if at == axis else size for at, size in enumerate(shape)]


def _number_of(rows: Sequence[int], axis: int, at: Sequence) -> tuple:
    """Return where the number of the row of a place is."""
    return at[0] if rows[0] > 1 else _int(0), at[axis]


def _write(cache, value, number, axis: int, at: Sequence) -> None:
    """Store a number of a new row, if the cache has the row."""
    size = cache.shape[axis]
    place = tirx.Select(number < 0, number + size, number)
    with T.If(tirx.all(place >= 0, place < size)), T.Then():
        T.buffer_store(cache, value, [*at[:axis], place, *at[axis + 1 :]])


def _read(name: str, sizes: Sequence[int], dtype: str, made: Kernel | None) -> list[tuple]:
    """Return (name, sizes, type, memory) of the tensors that a tensor is made of; of itself if nothing makes it."""
    if made is None:
        return [(name, _sizes(sizes), dtype, "global")]
    return [(each.name, list(each.shape), str(each.dtype), each.scope()) for each in made.inputs]


def _value(made: Kernel | None, read: Sequence, at: Sequence):
    """Return the number at a place, of the tensors `read`."""
    if made is None:
        return read[0][tuple(at)]
    (stage,) = made.stages
    value = substitute(stage.body.value, dict(zip(stage.spatial, at, strict=True)))

    def load(each):
        found = next(new for old, new in zip(made.inputs, read, strict=True) if each.source.same_as(old))
        return found[tuple(each.indices)]

    return mapped(value, (ir.TensorLoad, load))


@contextmanager
def _points(name: str, sizes: Sequence[int], read: Sequence, written: Sequence):
    with T.grid(*_sizes(sizes)) as found, T.sblock(name):
        loops = found if len(sizes) > 1 else [found]  # TVM returns a single variable without a list
        at = [T.axis.spatial(_int(size), each) for size, each in zip(sizes, loops, strict=True)]
        T.reads(*map(_whole, read))
        T.writes(*map(_whole, written))
        yield at


def _sizes(shape: Sequence[int]) -> list[tirx.IntImm]:
    return [_int(size) for size in shape]


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", int(value))


def _whole(buffer):
    return buffer[tuple(slice(_int(0), size) for size in buffer.shape)]
