# SPDX-License-Identifier: Apache-2.0
"""SliceWeights: a kernel whose weights take too much memory becomes several, each with a slice of them (FlexNN 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import tvm
from tvm import ir, relax

from ...ir.block import as_constant
from ...ir.compose import fresh
from ...ir.graph import Graph, Node, rewrite_graphs
from ...ir.restrict import Cut
from ...ir.sizes import JOIN, data_bytes
from ...planner.arena import aligned

VECTOR = 16  # float32 lanes of the widest vector of a CPU; widths of slices are multiples of it
MOST_SLICES = 64  # slices of a kernel: each is a kernel of its own to compile and to launch
_REPEATED = 0.05  # largest share of a kernel's work that all of its slices but one may repeat


@tvm.transform.module_pass(opt_level=0, name="smartmem.SliceWeights")
class SliceWeights:
    """Cut kernels along their results, so that the weights of each part fit beside what else is in memory.

    Before::

        y[i, n] = sum_k x[i, k] * w[k, n] + b[n]

    After, with as few slices as the budget allows::

        y0[i, n] = sum_k x[i, k] * w0[k, n] + b0[n];   y1[i, n] = sum_k x[i, k] * w1[k, n] + b1[n]
        y = smartmem.join(y0, y1)

    `JoinSlices` makes the parts write into ``y`` itself. Each element is computed as before, to the last bit.

    A slice takes half of the memory that is left at its step, so that the next slice can be read meanwhile. The input
    of a convolution needs no slices: the schedule rules apply im2col to a few columns at a time, as many as a tile has.

    Refuses (leaves as it is, with the reason) a kernel without a dimension of the result along which the weights can be
    cut, and a kernel whose slices would repeat much of its work, such as a matmul fused in front of another one.

    Parameters
    ----------
    budget : int
        Bytes for weights and all tensors between kernels.
    """

    def __init__(self, budget: int):
        self.budget = budget

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, self._slice)

    def _slice(self, graph: Graph) -> list[dict]:
        log, live = [], live_bytes(graph)
        for node in graph:
            large = node.large_constants
            if not large:
                continue
            room = max((self.budget - live[node]) // 2, 1)
            total = sum(data_bytes(weight.value) for weight in large.values())
            if total <= room:
                continue
            operator = (node.members or [node.var.name])[0]
            entry = {
                "pass": "SliceWeights",
                "operator": operator,
                "tensor": node.var.name,
                "bytes": total,
                "room": room,
            }
            cut, why = _best_cut(node, large)
            if cut is None:
                log.append({**entry, "action": "kept whole", "slices": 1, "reason": why})
                continue
            sliced = _sliced_bytes(cut, large)
            parts = list(_parts(cut.extent, sliced, max(room - (total - sliced), 1)))
            if len(parts) > 1:
                _replace(graph, node, cut, parts)
            reason = f"{sliced} of {total} bytes along dimension {cut.dim}, {parts[0][1]} of {cut.extent} in a slice"
            log.append({**entry, "action": f"cut into {len(parts)}", "slices": len(parts), "reason": reason})
        return log


def live_bytes(graph: Graph) -> dict[Node, int]:
    """Return the bytes of the tensors between kernels that are live at each node; results of the function excluded."""
    place = {node: number for number, node in enumerate(graph)}
    change = np.zeros(len(place) + 1, "int64")
    for node, first in place.items():
        readers = graph.readers(node.var)
        if readers and not graph.is_output(node.var):
            change[first] += data_bytes(node.var.ty)
            change[max(place[reader] for reader in readers) + 1] -= data_bytes(node.var.ty)
    return dict(zip(place, np.cumsum(change).tolist()))


def _sliced_bytes(cut: Cut, large: dict) -> int:
    """Return the bytes of the weights that a cut slices."""
    return sum(data_bytes(large[buffer].value) for buffer in cut.sliced if buffer in large)


def _best_cut(node: Node, large: dict) -> tuple[Cut | None, str]:
    """Return the cut that slices the most bytes of weights, the outermost of several, or why there is none."""
    kernel, cuts = node.kernel, []
    for dim in range(len(kernel.outputs[0].shape)):
        cut = Cut.along(kernel, dim, node.constants)
        if cut is not None and large.keys() & cut.sliced.keys() and cut.extent > VECTOR:
            cuts.append(cut)
    if not cuts:
        return None, "no dimension of its result walks along its weights"
    best = max(
        cuts,
        key=lambda cut: (_sliced_bytes(cut, large), -cut.repeated, -cut.dim),
    )
    work = sum(prod(stage.extents.values()) for stage in kernel.stages)
    if best.repeated > _REPEATED * work:
        return None, f"{best.repeated} of {work} steps of its loops would be computed again for each slice"
    return best, ""


def _parts(extent: int, sliced: int, room: int) -> Iterator[tuple[int, int]]:
    """Yield the first index and width of each slice: as few as fit, about equal, none narrower than a vector."""
    widest = max(room * extent // sliced, extent // MOST_SLICES, 1)
    if widest < extent:
        widest = max(widest // VECTOR, 1) * VECTOR
    width = aligned(-(-extent // -(-extent // widest)), VECTOR) if widest < extent else extent
    for begin in range(0, extent, width):
        yield begin, min(width, extent - begin)


def _replace(graph: Graph, node: Node, cut: Cut, parts: list[tuple[int, int]]) -> None:
    """Replace `node` by its parts and a join of them."""
    made = []
    for begin, extent in parts:
        kernel = cut.part(begin, extent)
        args = [
            as_constant(_cut_array(arg, cut.sliced[buffer], begin, extent)) if buffer in cut.sliced else arg
            for buffer, arg in zip(node.kernel.inputs, node.args, strict=True)
        ]
        shape = [int(dim) for dim in kernel.outputs[0].shape]
        var = relax.DataflowVar(f"{node.var.name}_{begin}", relax.TensorType(shape, node.var.ty.dtype))
        made.append(
            Node(var, node.value, args, fresh(kernel), members=node.members, views=node.views, attrs=node.attrs)
        )
    graph.insert(node, made)
    joined = relax.op.call_dps_packed(JOIN, relax.Tuple([each.var for each in made]), out_ty=node.var.ty)
    graph.replace_value(node, joined, "the slices of one kernel")


def _cut_array(constant: ir.Constant, dim: int, begin: int, extent: int) -> np.ndarray:
    array = constant.value.numpy()
    return np.ascontiguousarray(array[(slice(None),) * dim + (slice(begin, begin + extent),)])
