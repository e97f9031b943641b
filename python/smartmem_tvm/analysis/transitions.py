# SPDX-License-Identifier: Apache-2.0
"""Layout transitions: tensors that are stored in another order than a reader demands."""

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
    """A tensor that some reader accesses with strides.

    Attributes
    ----------
    tensor : str
    shape : tuple of int
        Shape in memory.
    memory : str
        ``buffer`` or ``texture``.
    stored : StorageOrder
        The stored order, with the demands that it serves and those that it does not.
    fixed : str or None
        The reason why no other order can be chosen, None if one could.
    """

    tensor: str
    shape: tuple[int, ...]
    memory: str
    stored: StorageOrder
    fixed: str | None


def strided(graph: Graph) -> Iterator[Strided]:
    """Yield the activations of `graph` that a reader demands in another order than the stored one.

    A reader demands contiguous memory along a dimension that it reduces over (`demands.demands`). In a buffer the
    innermost dimension is contiguous; in a texture, the texel and the dimension along the rows of the image. Only the
    kernels count, so that graphs of any pipeline compare. Weights are arranged at compile time, and are no activations.
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
    """Return variable -> buffer for the variables that kernels read."""
    return {
        arg: buffer
        for node in graph
        if node.kernel is not None
        for buffer, arg in zip(node.kernel.inputs, node.args, strict=True)
        if isinstance(arg, ir.Var)
    }
