# SPDX-License-Identifier: Apache-2.0
"""Rewrite a graph without loops, branches and sequences: see `control_flow` and `sequences`.

The rewrite needs numbers that are known before the graph runs: trip counts of loops, their conditions, and positions in
sequences. ONNX's reference evaluator computes them from constants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import evaluate, undecided
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.expand_functions import types_of
from smartmem_tvm.frontend.subgraphs import Body

MOST_NODES = 2000  # that loops may be unrolled to: the time to compile grows faster than their number
_MOST_EVALUATED = 1000  # nodes evaluated for one constant
_NOT_EVALUATED = {
    "If",
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


class Refused(Exception):
    """A node cannot be flattened; the text is the rest of a sentence that names the reason."""


Handler = Callable[["Flattening", onnx.NodeProto], None]


def flatten(model: onnx.ModelProto, name: str, handlers: Mapping[str, Handler]) -> onnx.ModelProto:
    """Return the model without nested graphs and sequences.

    Parameters
    ----------
    handlers : mapping
        Operator -> the function that flattens a node of it. A handler adds nodes with `Flattening.then`.

    Raises
    ------
    UserError
        If a condition, trip count or position is known only at run time, or the loops become too many nodes.
    """
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    flattening = Flattening(flat, handlers)
    try:
        flattening.run(flat.graph.node)
    except Refused as err:
        node = flattening.current
        label = walk.node_label(node)
        undecided.write(flat, flattening.undecided)
        hint = undecided.remedy(flat, label, "")
        raise UserError(
            f"{name}: operator {node.op_type} (node {label}) has no fixed form, {err}{hint and f'; {hint}'}."
        ) from err
    undecided.write(flat, flattening.undecided)
    del flat.graph.node[:]
    flat.graph.node.extend(flattening.nodes)
    flat.graph.initializer.extend(flattening.constants)
    del flat.graph.value_info[:]
    return flat


class Flattening:
    """The nodes of a flat graph, created in order.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
        The nodes of the flat graph.
    constants : list of onnx.TensorProto
        Initializers that flattening adds.
    sequences : dict
        Sequence -> the names of its tensors; optional -> a list of names, one name, or None if it is empty.
    opset : int
        ONNX's version that the model states.
    undecided : dict
        Label of each If that has both branches in the flat graph -> the inputs that its condition depends on.
    """

    def __init__(self, model: onnx.ModelProto, handlers: Mapping[str, Handler]):
        self._model, self._handlers = model, handlers
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.sequences: dict = {}
        self.undecided: dict[str, list[str]] = {}
        self.opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        self.current: onnx.NodeProto | None = None
        self._producers: dict[str, tuple[int, onnx.NodeProto]] = {}
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._values: dict[str, np.ndarray] = {}
        self._shapes: tuple[int, dict] = (-1, {})
        self._pending: deque = deque()
        self._count = self._unrolled = 0

    def run(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Flatten these nodes."""
        self._pending.extend(nodes)
        while self._pending:
            each = self._pending.popleft()
            if not isinstance(each, onnx.NodeProto):
                each()
                continue
            handler = self._handlers.get(each.op_type) if each.domain in ("", "ai.onnx") else None
            if handler is None:
                self.keep(each)
            else:
                self.current = each
                handler(self, each)

    def keep(self, node: onnx.NodeProto) -> None:
        """Add a node unchanged."""
        self.nodes.append(node)
        self._producers.update({name: (len(self.nodes), node) for name in node.output})

    def then(self, nodes: Iterable[onnx.NodeProto | Callable[[], None]]) -> None:
        """Flatten these nodes, and call these functions, next: they replace the current node."""
        self._pending.extendleft(reversed(list(nodes)))

    def body(self, graph: onnx.GraphProto, inputs: int, outputs: int) -> Body:
        """Return a nested graph to copy from; its constants move to the flat graph.

        Raises
        ------
        Refused
            If its numbers of inputs or outputs differ from those of its node.
        """
        if (len(graph.input), len(graph.output)) != (inputs, outputs):
            raise Refused(
                f"its graph '{graph.name}' has {len(graph.input)} inputs and {len(graph.output)} outputs, and the node "
                f"{inputs} and {outputs} for it; export the model again"
            )
        self._count += 1
        body = Body(graph, f"{walk.node_label(self.current)}/{self._count}/")
        self.constants.extend(body.constants)
        self._tensors.update({tensor.name: tensor for tensor in body.constants})
        return body

    def both_ways(self, node: onnx.NodeProto) -> None:
        """Record that both branches of an If are in the flat graph."""
        inputs = undecided.deciding_inputs(self._model, self._producers, node.input[0])
        self.undecided[walk.node_label(node)] = inputs

    def spend(self, nodes: int) -> None:
        """Count the nodes of an unrolled loop."""
        self._unrolled += nodes
        if self._unrolled > MOST_NODES:
            raise Refused(f"unrolled it would be more than {MOST_NODES} nodes; export the model for shorter inputs")

    def constant(self, value: np.ndarray) -> str:
        """Add a constant and return its name."""
        tensor = numpy_helper.from_array(np.asarray(value), self.name("constant"))
        self.constants.append(tensor)
        self._tensors[tensor.name] = tensor
        return tensor.name

    def name(self, what: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{walk.node_label(self.current)}/{what}{self._count}"

    def node(self, op_type: str, inputs: list[str], output: str = "", **attributes) -> tuple[onnx.NodeProto, str]:
        """Return a new node and the name of its result."""
        output = output or self.name(op_type)
        return helper.make_node(op_type, inputs, [output], name=output, **attributes), output

    def unsqueezed(self, tensor: str, axis: int) -> tuple[onnx.NodeProto, str]:
        """Return a node that adds an axis to a tensor, and the name of its result."""
        if self.opset < 13:
            return self.node("Unsqueeze", [tensor], axes=[axis])
        return self.node("Unsqueeze", [tensor, self.constant(np.array([axis], "int64"))])

    def value(self, name: str, what: str) -> np.ndarray:
        """Return a number that has to be known.

        Raises
        ------
        Refused
            If it depends on run-time data; the message names it `what`.
        """
        value = self.known(name)
        if value is None:
            raise Refused(f"its {what} is known only at run time; make it a constant of the model")
        return value

    def number(self, name: str, what: str) -> int:
        """Return a single integer that has to be known.

        Raises
        ------
        Refused
            If it depends on run-time data, or is not a single integer.
        """
        value = self.value(name, what)
        if value.size != 1 or value.dtype.kind not in "biu":
            raise Refused(f"its {what} is of shape {list(value.shape)} and type {value.dtype}; make it one integer")
        return int(value.reshape(-1)[0])

    def known(self, name: str) -> np.ndarray | None:
        """Return the value of a tensor, None if it depends on run-time data."""
        if name not in self._values:
            found = self._evaluate(name)
            if found is None:
                return None
            self._values[name] = found
        return self._values[name]

    def _evaluate(self, name: str) -> np.ndarray | None:
        if name in self._tensors:
            return numpy_helper.to_array(self._tensors[name])
        nodes, tensors, left, seen = {}, [], [name], set()
        while left:
            each = left.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._values:
                tensors.append(numpy_helper.from_array(self._values[each], each))
            elif each in self._tensors:
                tensors.append(self._tensors[each])
            elif each in self._producers and len(nodes) < _MOST_EVALUATED:
                number, node = self._producers[each]
                nodes[number] = node
                left += [inner for inner in node.input if inner]
            else:
                return None
        if any(node.op_type in _NOT_EVALUATED for node in nodes.values()):
            return None
        graph = helper.make_graph(
            [nodes[number] for number in sorted(nodes)], "constant", [], [onnx.ValueInfoProto(name=name)], tensors
        )
        part = helper.make_model(graph, opset_imports=self._model.opset_import)
        try:
            return np.asarray(ReferenceEvaluator(part).run(None, {})[0])
        except Exception:  # a tensor that cannot be evaluated is unknown
            return None

    def shape(self, name: str, what: str) -> list[int]:
        """Return the sizes of a tensor, which have to be known; a refusal names it `what`."""
        if self._shapes[0] != len(self.nodes):
            self._shapes = (len(self.nodes), self._inferred())
        found = self._shapes[1].get(name)
        if found is None:
            raise Refused(f"the shape of its {what} is not known; export the model with fixed sizes")
        return found

    def _inferred(self) -> dict[str, list[int]]:
        part = onnx.ModelProto()
        part.CopyFrom(self._model)
        part.ir_version = max(4, part.ir_version)  # before IR 4, ONNX only reads initializers that are also inputs
        del part.graph.node[:], part.graph.output[:], part.graph.value_info[:]
        part.graph.node.extend(self.nodes)
        part.graph.initializer.extend(self.constants)
        shapes = {name: evaluate.shape_of(kind) for name, kind in types_of(part).items()}
        return {name: shape for name, shape in shapes.items() if shape is not None}

    def axis(self, axis: int, shape: list[int]) -> int:
        """Return an axis of a tensor as a number that is not negative.

        Raises
        ------
        Refused
            If the tensor has no such axis.
        """
        if not -len(shape) <= axis < len(shape):
            raise Refused(f"its axis {axis} is none of a tensor of shape {shape}; export the model again")
        return axis % len(shape)

    def identity(self, source: str, name: str) -> onnx.NodeProto:
        """Return a node that gives a tensor or a sequence a second name."""
        return self.node("Identity", [source], name)[0]
