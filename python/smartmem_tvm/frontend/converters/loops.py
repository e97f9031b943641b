# SPDX-License-Identifier: Apache-2.0
"""Write kernels as loops for operators that Relax lacks, for example over independent rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from smartmem_tvm.frontend.converters.node import Node, dtype_of, shape_of
from smartmem_tvm.ir.index_map import unflatten

Output = tuple[Sequence[int], str]


def loops_kernel(
    node: Node,
    name: str,
    inputs: Sequence[relax.Expr],
    outputs: Sequence[Output],
    body: Callable[[list, list], None],
    attributes: Mapping[str, object] | None = None,
) -> list[relax.Expr]:
    """Build a kernel of any loops and call it.

    Parameters
    ----------
    inputs : sequence of relax.Expr
        Tensors that the kernel reads.
    outputs : sequence of (shape, dtype)
        Tensors that the kernel writes. Scratch memory is a further result.
    body : callable
        ``body(inputs, outputs)`` emits the statements to TVM's IRBuilder with the helpers below; it gets buffers.
    attributes : mapping, optional
        Further attributes of the kernel.

    Returns
    -------
    list of relax.Expr
        The results.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"tirx.noalias": True, **(attributes or {})})
        read = [_argument(f"in{n}", shape_of(each), dtype_of(each)) for n, each in enumerate(inputs)]
        written = [_argument(f"out{n}", *each) for n, each in enumerate(outputs)]
        body(read, written)
    function = node.bb.add_func(builder.get(), name)
    types = [relax.TensorType(shape, dtype) for shape, dtype in outputs]
    result = node.emit(relax.call_tir(function, relax.Tuple(list(inputs)), types if len(types) > 1 else types[0]))
    return [node.emit(relax.TupleGetItem(result, n)) for n in range(len(types))] if len(types) > 1 else [result]


def rows_kernel(
    node: Node,
    name: str,
    rows: Sequence[int],
    inputs: Sequence[relax.Expr],
    outputs: Sequence[Output],
    body: Callable[[list, list, list], None],
) -> list[relax.Expr]:
    """Build and call a kernel that runs the same statements for each row: sequential within a row, parallel over rows.

    Parameters
    ----------
    rows : sequence of int
        The sizes of the space of rows.
    inputs, outputs
        As in `loops_kernel`. A row may read back values that it has written itself.
    body : callable
        ``body(row, inputs, outputs)``: `row` is a list of indices.

    Returns
    -------
    list of relax.Expr
        The results.
    """

    def nest(read: list, written: list) -> None:
        # One flat loop: TVM's threads do not support nested parallel loops.
        with T.parallel(_index(0), _index(prod(rows))) as number, T.sblock(name):
            row = unflatten(T.axis.spatial(_index(prod(rows)), number), [*map(_index, rows)])
            _touches(read, written)
            body(row, read, written)

    return loops_kernel(node, name, inputs, outputs, nest)


@contextmanager
def points(
    name: str, sizes: Sequence[int], read: Sequence, written: Sequence, step: tuple[int, ir.Expr] | None = None
) -> Iterator[list[ir.Expr]]:
    """``with points(...) as indices``: run the same statements for each point of a space, independent of each other.

    Parameters
    ----------
    sizes : sequence of int
        The extents of the space.
    read, written : sequence of buffers
        The buffers that the points may read and write.
    step : (int, ir.Expr), optional
        The extent and the variable of a sequential loop around the space. It becomes the first index.
    """
    with T.grid(*map(_index, sizes)) as found, T.sblock(name):
        variables = found if len(sizes) > 1 else [found]  # TVM returns a single variable without a list
        place = [T.axis.scan(_index(step[0]), step[1])] if step else []
        place += [T.axis.spatial(_index(size), each) for size, each in zip(sizes, variables, strict=True)]
        _touches(read, written)
        yield place


def loop(extent: int):
    """``with loop(extent) as i``: a sequential loop."""
    return T.serial(_index(0), _index(extent))


def unrolled(extent: int):
    """``with unrolled(extent) as i``: an unrolled loop, so that arrays indexed by `i` may be kept in registers."""
    return T.unroll(_index(0), _index(extent))


def registers(count: int, dtype: str):
    """Allocate local values of one point."""
    return T.sblock_alloc_buffer([_index(count)], dtype, scope="local")


def store(buffer, indices: Sequence, value) -> None:
    """``buffer[indices] = value``."""
    T.buffer_store(buffer, value, list(indices))


@contextmanager
def when(condition) -> Iterator[None]:
    """``with when(condition)``: run the statements only if the condition holds."""
    with T.If(condition), T.Then():
        yield


def _index(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", int(value))


def _argument(name: str, shape: Sequence[int], dtype: str):
    return T.arg(name, T.Buffer([_index(size) for size in shape], dtype))


def _touches(read: Sequence, written: Sequence) -> None:
    T.reads(*map(_whole, (*read, *written)))
    T.writes(*map(_whole, written))


def _whole(buffer):
    return buffer[tuple(slice(_index(0), size) for size in buffer.shape)]
