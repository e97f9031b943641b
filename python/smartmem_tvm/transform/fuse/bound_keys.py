# SPDX-License-Identifier: Apache-2.0
"""BoundKeys: attention over a cache reads the keys from the first to the last one that its mask lets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...analysis.classify import reduces
from ...analysis.key_axis import key_axis, mask_of
from ...analysis.key_span import lengths, span_kernel
from ...analysis.late_division import divide_late
from ...ir.compose import fresh
from ...ir.graph import CALL_TIR, Graph, Node, describe, normalise, rewrite_graphs
from ...ir.kernel import CACHE_AXIS, KEY_AXIS, Kernel, Opaque, emit, shape_of

_MOST_KERNELS = 3  # scores, softmax, and their products with the values


@tvm.transform.module_pass(opt_level=0, name="smartmem.BoundKeys")
class BoundKeys:
    """Let attention over a cache read the keys from the first to the last one that a row sees, and not all of them.

    Before::

        s = matmul_add(q, keys, mask)
        p = softmax(s)
        o = matmul(p, values)                                  # values: a cache with its new rows

    After::

        span = keys_seen(mask)                                 # two int64 numbers for all layers with that mask
        o = matmul_add_softmax_matmul(q, keys, mask, values, span)

    The mask is a tensor or an expression that is added to the scores, or chosen in their place. What it adds hides a
    key if it is `analysis.key_axis.UNSEEN` or less. So the span is data: it is right for positions, for masks that a
    caller gives, and for windows. The kernel gets an attribute with the dimension of the keys, for which
    `schedule.cpu.within_length` makes code for several lengths. Where a row sees no key, all are read, as softmax then
    takes their mean.

    Refused are

    1. scores without a mask, and masks that are not float32,
    2. intermediate results that another kernel reads,
    3. kernels that read keys through a map, or do more with them than a softmax and sums of products,
    4. caches of few rows, for which there is one length only,
    5. on GPUs, attention that `refusal` speaks against.

    Parameters
    ----------
    refusal : callable, optional
        Kernel with its span -> why no rule takes it, or an empty string.
    """

    def __init__(self, refusal: Callable[[tirx.PrimFunc], str] | None = None):
        self.refusal = refusal

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        writers = {
            gvar: int(func.attrs[CACHE_AXIS])
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and CACHE_AXIS in (func.attrs or {})
        }
        return rewrite_graphs(mod, lambda graph: _Bounds(graph, writers, self.refusal).run()) if writers else mod


@dataclass
class _Bounds:
    graph: Graph
    writers: dict[ir.GlobalVar, int]
    refusal: Callable[[tirx.PrimFunc], str] | None = None
    known: list[Node] = field(default_factory=list)  # spans of masks so far
    log: list[dict] = field(default_factory=list)

    def run(self) -> list[dict]:
        """Rewrite the graph in place; return one decision for each product with a cache."""
        for node in self.graph:
            for cache in list(node.args) if node in self.graph and node.kernel is not None else ():
                axis = self._axis(cache)
                if axis is not None and _adds_up(node, cache, axis):
                    self._bound(node, cache, axis)
        return self.log

    def _axis(self, arg) -> int | None:
        """Return the dimension of the rows of a cache with its new rows; None for other tensors."""
        node = self.graph.producer(arg)
        value = node.value if node is not None and node.kernel is None else None
        if not isinstance(value, ir.Call) or value.op != CALL_TIR:
            return None
        return self.writers.get(value.args[0])

    def _bound(self, node: Node, cache, axis: int) -> None:
        decision = {"pass": "BoundKeys", "operator": node.members[-1]}
        try:
            trial, taken, mask = self._attention(node, cache, axis)
            kernel, key_axis = self._with_span(trial, cache, axis, len(taken))
        except Opaque as why:
            self.log.append({**decision, "action": "kept", "reason": f"attention reads the whole cache: {why}"})
            return
        span = self._span(node, trial, mask)
        trial.kernel = kernel
        trial.args = [*trial.args, span]
        self.graph.take(node, trial)
        node.attrs = {**node.attrs, KEY_AXIS: key_axis}
        for each in taken:
            self.graph.remove(each)
        why = "it reads the keys from the first to the last one that a row sees"
        self.log.append({**decision, "action": "fused", "into": [node.var.name], "reason": why})

    def _with_span(self, trial: Node, cache, axis: int, taken: int) -> tuple[Kernel, list[int]]:
        """Return the kernel with a span as its last input, and its attribute `KEY_AXIS`."""
        buffer = tirx.decl_buffer([tirx.const(2, "int64")], "int64", "span")
        at = next(number for number, arg in enumerate(trial.args) if arg.same_as(cache))
        kernel = divide_late(trial.kernel)
        kernel = replace(kernel, inputs=(*kernel.inputs, buffer))
        key_axis = [at, axis, taken]
        why = self.refusal(emit(kernel, {**trial.attrs, KEY_AXIS: key_axis})) if self.refusal is not None else ""
        if why:
            raise Opaque(why)
        return kernel, key_axis

    def _attention(self, node: Node, cache, axis: int):
        """Return the node with scores and softmax in its kernel, the nodes that it took, and the mask."""
        taken: list[Node] = []
        while True:
            trial = self.graph.absorbing(node, [(each, False) for each in taken])
            buffer = trial.kernel.inputs[next(n for n, arg in enumerate(trial.args) if arg.same_as(cache))]
            if len(lengths(shape_of(buffer)[axis])) == 1:
                raise Opaque("it has few rows")
            keys = key_axis(trial.kernel, buffer, axis)
            more = self._before(trial, node, taken, keys)
            if more is None or len(taken) == _MOST_KERNELS - 1:
                return trial, taken, mask_of(trial.kernel, keys, _noughts(trial))
            taken.append(more)

    def _before(self, trial: Node, node: Node, taken: list[Node], keys: dict) -> Node | None:
        """Return a node that computes numbers for each key, by a reduction, for nothing but `trial`."""
        for buffer, arg in zip(trial.kernel.inputs, trial.args, strict=True):
            producer = self.graph.producer(arg)
            if producer is None or producer.kernel is None or not reduces(producer.kernel):
                continue
            along = any(
                any(key.same_as(index) for index in indices)
                for stage, key in keys.items()
                for indices in stage.maps(buffer)
            )
            readers = self.graph.readers(arg)
            alone = len(readers) == 1 and readers[0] in (node, *taken) and not self.graph.is_output(arg)
            if along and not (alone and len(producer.kernel.outputs) == 1):
                raise Opaque("another kernel reads its scores, or they are a result")
            if along:
                return producer
        return None

    def _span(self, node: Node, trial: Node, mask) -> relax.Var:
        """Return the variable with the keys that are seen, of an equal mask if there was one."""
        kernel = span_kernel(mask)
        bound = dict(zip(trial.kernel.inputs, trial.args, strict=True))
        made = Node(relax.DataflowVar("keys_seen", relax.TensorType([2], "int64")), None)
        normalise(made, fresh(kernel), [bound[buffer] for buffer in kernel.inputs])
        made.members = [describe("keys_seen", made.var)]
        for other in self.known:
            if _equal(other, made):
                return other.var
        self.known.append(made)
        self.graph.insert(node, [made])
        return made.var


def _noughts(node: Node) -> list:
    """Return the inputs of a kernel that are constants of zeros."""
    pairs = zip(node.kernel.inputs, node.args, strict=True)
    return [buffer for buffer, arg in pairs if isinstance(arg, ir.GenericConst) and not arg.value.numpy().any()]


def _adds_up(node: Node, cache, axis: int) -> bool:
    """Whether a node adds up along the rows of a cache."""
    buffer = node.kernel.inputs[next(n for n, arg in enumerate(node.args) if arg.same_as(cache))]
    return any(
        any(var.same_as(indices[axis]) for var in stage.reduction)
        for stage in node.kernel.stages
        for indices in stage.maps(buffer)
    )


def _equal(one: Node, other: Node) -> bool:
    alike = len(one.args) == len(other.args) and all(
        a.same_as(b) or tvm_ffi.structural_equal(a, b) for a, b in zip(one.args, other.args, strict=True)
    )
    return alike and tvm_ffi.structural_equal(emit(one.kernel), emit(other.kernel))
