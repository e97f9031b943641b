# SPDX-License-Identifier: Apache-2.0
"""Layout transitions: tensors whose stored order is not what a reader wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir

from ..ir.graph import Graph
from ..ir.kernel import shape_of
from ..ir.texels import is_texture
from ..planner.storage_order import StorageOrder, as_stored
from .demands import reader_demands, why_fixed


@dataclass(frozen=True)
class Strided:
    """A tensor that some reader runs through with strides.

    Attributes
    ----------
    tensor : str
    shape : tuple of int
        As it lies in memory.
    memory : str
        ``buffer`` or ``texture``.
    stored : StorageOrder
        Whom that serves, and whom it does not.
    fixed : str or None
        Why no other order can be chosen, None if one could.
    """

    tensor: str
    shape: tuple[int, ...]
    memory: str
    stored: StorageOrder
    fixed: str | None


def strided(graph: Graph) -> Iterator[Strided]:
    """The activations of `graph` that a reader wants in another order than they are stored in.

    A reader wants memory to be contiguous along a dimension that it reduces over (`demands.demands`). In a buffer the
    innermost dimension is; in a texture the texel and the dimension along the rows of the image. Nothing but the
    kernels is looked at, so that graphs of any pipeline compare. Weights, which are arranged at compile time, are no
    activations.
    """
    weights = _weights(graph)
    for var, buffer in _tensors(graph).items():
        if var in weights:
            continue
        demands = [each for reader in graph.readers(var) if reader.kernel for each in reader_demands(reader, var)]
        in_texture, shape = is_texture(buffer), shape_of(buffer)
        stored = as_stored(shape, demands, 2 if in_texture else 1)
        if stored.unserved:
            memory = "texture" if in_texture else "buffer"
            yield Strided(var.name, shape, memory, stored, why_fixed(graph, var))


def _weights(graph: Graph) -> set:
    """Parameters of the function that were constants."""
    function = graph.function
    inputs = (function.attrs or {}).get("num_input", len(function.params))
    return set(list(function.params)[int(inputs) :])


def _tensors(graph: Graph) -> dict:
    """Variables that kernels read, and the buffers through which they do."""
    return {
        arg: buffer
        for node in graph
        if node.kernel is not None
        for buffer, arg in zip(node.kernel.inputs, node.args, strict=True)
        if isinstance(arg, ir.Var)
    }
