# SPDX-License-Identifier: Apache-2.0
"""Along which dimension of each tensor the positions of a length lie, in a graph of kernels."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import relax, tirx

from ..ir.graph import Node
from ..ir.index_map import variables
from ..ir.kernel import Stage
from ..ir.several_sizes import places_of, takes_length, tile_of


def position_axes(function: relax.Function, nodes: Iterable[Node]) -> dict:
    """Return the dimensions of each tensor that loops over positions write; none if the function takes no length.

    Parameters
    ----------
    function : relax.Function
        Its attribute `ir.several_sizes.TILE` says where its inputs have positions.
    nodes : iterable of Node
        Its kernels in their order.

    Returns
    -------
    dict
        Variable -> set of dimensions. A dimension is found from the inputs on, through iterators of results that an
        index along positions has, also of a window that goes on by two.
    """
    if not takes_length(function):
        return {}
    found = {
        param: {place["axis"] for place in places_of(share)}
        for param, share in zip(function.params, tile_of(function)["inputs"])
    }
    for node in nodes:
        known = {buffer: found.get(arg, set()) for buffer, arg in zip(node.kernel.inputs, node.args, strict=True)}
        for stage in node.kernel.stages:
            if isinstance(stage.body, tirx.BufferStore):
                known[stage.body.buffer] = _written(stage, known)
        found[node.var] = known.get(node.kernel.outputs[0], set())
    return found


def _written(stage: Stage, known: dict) -> set[int]:
    along = {
        var
        for load in stage.loads
        for dim in known.get(load.source, ())
        for var in variables(load.indices[dim])
        if var in stage.spatial
    }
    return {dim for dim, at in enumerate(stage.body.indices) if any(at.same_as(var) for var in along)}
