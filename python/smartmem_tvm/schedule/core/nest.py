# SPDX-License-Identifier: Apache-2.0
"""Builders of loop nests: the few statements that all rules emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from tvm import ir, s_tir, sym, tirx

from ...ir.index_map import is_if_then_else
from ...ir.strength_reduction import rewrite_accesses

_INDEX_TYPE: ContextVar[str] = ContextVar("index type", default="int64")
_MEMORY_ONLY: ContextVar[bool] = ContextVar("on-chip work is left out", default=False)
SERIAL, PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
VECTOR, UNROLL = tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED


@contextmanager
def index_type(dtype: str):
    """Give loops and indices this integer type within the context: that of the current kernel."""
    token = _INDEX_TYPE.set(dtype)
    try:
        yield
    finally:
        _INDEX_TYPE.reset(token)


def current_index_type() -> str:
    """Return the integer type of loops and indices."""
    return _INDEX_TYPE.get()


@contextmanager
def memory_only():
    """Make `on_chip` emit nothing within the context, for callers that only count accesses to global memory."""
    token = _MEMORY_ONLY.set(True)
    try:
        yield
    finally:
        _MEMORY_ONLY.reset(token)


def on_chip(make: Callable[[], tirx.Stmt]) -> tirx.Stmt:
    """Return ``make()``, a statement without accesses to global memory; within `memory_only` an empty statement.

    These statements are most of an unrolled nest, so leaving them out saves most of the time to build it.
    """
    return tirx.Evaluate(tirx.const(0, "int32")) if _MEMORY_ONLY.get() else make()


def fresh(name: str) -> tirx.Var:
    """Return a new index variable."""
    return tirx.Var(name, _INDEX_TYPE.get())


def index(value: int) -> tirx.IntImm:
    """Return an integer as an index expression."""
    return _constant(_INDEX_TYPE.get(), int(value))


@lru_cache(maxsize=1024)
def _constant(dtype: str, value: int) -> tirx.IntImm:
    return tirx.IntImm(dtype, value)


def loop(extent, body: Callable, name: str = "i", kind=SERIAL) -> tirx.Stmt:
    """Return ``for name in range(extent): body(name)``; for extent 1 ``body(0)`` without a loop."""
    if isinstance(extent, int) and extent == 1:
        return body(index(0))
    var = fresh(name)
    extent = index(extent) if isinstance(extent, int) else extent
    return tirx.For(var, index(0), extent, kind, body(var))


class Scope:
    """A builder of loops that keeps the range of each loop variable, so that indices under them can be simplified."""

    def __init__(self):
        self.analyzer = sym.Analyzer()

    def loop(self, extent, body: Callable, name: str = "i", kind=SERIAL, most: int | None = None) -> tirx.Stmt:
        """Return a loop, as the function `loop` does; `most` bounds an extent that is an expression."""

        def bound(var):
            if isinstance(var, ir.Var):
                self.analyzer.bind(var, ir.Range(index(0), index(most or int(extent))))
            return body(var)

        return loop(extent, bound, name, kind)

    def tasks(
        self, total: int, parts: int, body: Callable, name: str = "i", around: Callable = lambda nest: nest
    ) -> tirx.Stmt:
        """Return ``body(0)`` to ``body(total - 1)`` in at most `parts` equal tasks, in parallel if there are several.

        Parameters
        ----------
        around : callable
            Wraps the loop of a task, mostly to allocate memory of its own.
        """
        chunk, count = split_work(total, parts)

        def task(t) -> tirx.Stmt:
            first = t * index(chunk)
            length = chunk if total % chunk == 0 else tirx.min(index(chunk), index(total) - first)
            return around(self.loop(length, lambda i: body(first + i), name, most=chunk))

        return self.loop(count, task, "task", PARALLEL if count > 1 else SERIAL)

    def nest(
        self, vars_: Sequence, extents: Mapping, body: Callable, name: str = "r", kind: Callable = lambda var: SERIAL
    ) -> tirx.Stmt:
        """Return loops over iterators, the first one outermost; `body` takes a dict of iterator -> value.

        Parameters
        ----------
        kind : callable
            Iterator -> the kind of its loop.
        """

        def at(point: dict) -> tirx.Stmt:
            if len(point) == len(vars_):
                return body(point)
            var = vars_[len(point)]
            return self.loop(extents[var], lambda v: at({**point, var: v}), f"{name}{len(point)}", kind(var))

        return at({})

    def vectors(self, width: int, lanes: int, body: Callable) -> tirx.Stmt:
        """Return ``body(0)`` to ``body(width - 1)``, simplified, as vectors of `lanes` and a short one for the rest."""
        count, rest = divmod(width, lanes)
        whole = self.loop(count, lambda v: self._vector(v * index(lanes), lanes, body), "v", UNROLL) if count else None
        return block(whole, self._vector(index(width - rest), rest, body) if rest else None)

    def line(self, length: int, lanes: int, body: Callable, name: str = "c", recomputes: bool = True) -> tirx.Stmt:
        """Return ``body(0)`` to ``body(length - 1)``, contiguous elements, as vectors of `lanes`, or less if short.

        The last vector ends at the end of the line. It computes some elements again, which takes less time than the
        rest of them one by one.

        Parameters
        ----------
        recomputes : bool
            Whether elements may be computed twice. A store from one scratch buffer to another must not be: TVM's
            StorageRewrite may give both the same memory, where the first store overwrites what the second one reads.
        """
        lanes = power_of_two(lanes, length)
        count, rest = divmod(length, lanes)
        if lanes == 1:
            return self.loop(length, body, name)

        def vector(first, width: int = lanes) -> tirx.Stmt:
            return self.loop(width, lambda j: body(first + j), "j", VECTOR)

        end = lanes if recomputes else rest
        last = vector(index(length - end), end) if rest else None
        return block(self.loop(count, lambda q: vector(q * index(lanes)), name), last)

    def _vector(self, first, lanes: int, body: Callable) -> tirx.Stmt:
        return self.loop(lanes, lambda j: self.simplify(body(first + j)), "j", VECTOR)

    def simplify(self, node):
        """Simplify the indices and conditions in an expression or statement under the loops built so far."""

        # `[:]` copies TVM's array at once; iterating over it takes much longer.
        def load(ld):
            # `source[...]` would check each index again.
            return tirx.BufferLoad(ld.source, [self.index(each) for each in ld.indices[:]])

        callbacks = ((ir.TensorLoad, load), (ir.Call, self._select))
        return rewrite_accesses(node, callbacks, self.index)

    def index(self, expr):
        """Simplify one index."""
        return expr if type(expr) is tirx.IntImm else self.analyzer.simplify(expr)

    def _select(self, call):
        if not is_if_then_else(call):
            return call
        condition, yes, no = call.args[:]
        condition = self.analyzer.simplify(condition)
        if isinstance(condition, tirx.IntImm):
            return yes if int(condition) else no
        return tirx.if_then_else(condition, yes, no)


def power_of_two(most: int, size: int) -> int:
    """Return the largest power of two of at most `size`, and at most `most`, which is one."""
    while most > size:
        most //= 2
    return most


def block(*statements) -> tirx.Stmt:
    """Return statements in order without those that are None; an empty statement if none is left."""
    flat = [s for s in statements if s is not None] or [tirx.Evaluate(index(0))]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def store(buffer, value, *indices) -> tirx.Stmt:
    """Return ``buffer[indices] = value``."""
    return tirx.BufferStore(buffer, value, [index(i) if isinstance(i, int) else i for i in indices])


def scratch(shape: Sequence[int], dtype: str, name: str):
    """Return a buffer to be allocated with `allocate`."""
    return tirx.decl_buffer([index(n) for n in shape], dtype, name, layout=None)


def allocate(buffers: Sequence, body: tirx.Stmt) -> tirx.Stmt:
    """Allocate scratch buffers around `body`, once per execution of it."""
    if not buffers:
        return body
    inner = s_tir.SBlock([], [], [], "scratch", body, alloc_buffers=list(buffers))
    return s_tir.SBlockRealize([], True, inner)


def split_work(total: int, parts: int) -> tuple[int, int]:
    """Cut `total` into at most `parts` equal chunks: (chunk length, number of chunks); the last may be shorter."""
    chunk = -(-total // max(1, min(parts, total)))
    return chunk, -(-total // chunk)
