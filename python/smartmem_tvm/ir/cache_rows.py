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
    """

    input: int
    output: int
    name: str
    axis: int
    sequences: int = 1


def caches_of(function: relax.Function) -> list[Cache]:
    """Return the caches of a function, in the order of its inputs."""
    attrs = function.attrs or {}
    return [Cache(**each) for each in json.loads(str(attrs[CACHES]))] if CACHES in attrs else []


def with_caches(function: relax.Function, caches: Sequence[Cache]) -> relax.Function:
    """Return the function with the attribute of its caches."""
    return function.with_attr(CACHES, json.dumps([asdict(each) for each in caches]))


def rows_writer(
    shape: Sequence[int],
    dtype: str,
    rows: Sequence[int],
    axis: int,
    in_place: bool,
    made: Kernel | None = None,
    counted: Kernel | None = None,
) -> tirx.PrimFunc:
    """Return the kernel that writes rows into a cache.

    Its arguments are the cache (`shape`), the new rows (the same, but for ``rows[1]`` along `axis`) and their numbers
    (`rows`, int64: one line for each sequence, or one for all; a negative number counts from the end). A row whose
    number is not in the cache is left out. A fourth argument, for the result, is there unless `in_place`.

    Parameters
    ----------
    rows : (int, int)
        1 or the size of the cache's first dimension, and the number of new rows.
    made, counted : Kernel, optional
        What makes the new rows, and their numbers, one pointwise stage: its inputs are arguments in their place.
    """
    sequences, count = rows
    new = [count if at == axis else size for at, size in enumerate(shape)]
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"tirx.noalias": True, CACHE_AXIS: axis})
        cache = T.arg("cache", T.Buffer(_sizes(shape), dtype))
        read, numbers = (
            [T.arg(name, T.Buffer(sizes, kind)) for name, sizes, kind in each]
            for each in (_read("fresh", new, dtype, made), _read("rows", rows, "int64", counted))
        )
        written = cache if in_place else T.arg("written", T.Buffer(_sizes(shape), dtype))
        if not in_place:
            with _points("copy", shape, [cache], [written]) as at:
                T.buffer_store(written, cache[tuple(at)], at)
        with _points("write", new, [cache, *read, *numbers], [written]) as at:
            number = _value(counted, numbers, [at[0] if sequences > 1 else _int(0), at[axis]])
            place = tirx.Select(number < 0, number + shape[axis], number)
            with T.If(tirx.all(place >= 0, place < shape[axis])), T.Then():
                T.buffer_store(written, _value(made, read, at), [*at[:axis], place, *at[axis + 1 :]])
    return builder.get()


def _read(name: str, sizes: Sequence[int], dtype: str, made: Kernel | None) -> list[tuple]:
    """Return (name, sizes, type) of the tensors that a tensor is made of; of itself if nothing makes it."""
    if made is None:
        return [(name, _sizes(sizes), dtype)]
    return [(each.name, list(each.shape), str(each.dtype)) for each in made.inputs]


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
