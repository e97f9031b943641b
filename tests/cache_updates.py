# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs that write new rows into a cache in the ways of exporters, and ONNX Runtime's results for them."""

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FORMS = ("where", "where-not", "elements", "nd", "coordinates", "pairs", "tensor", "circular")


@dataclass(frozen=True)
class Update:
    """A graph with the inputs ``past``, ``new`` and ``rows``, and the results ``present`` and ``total``, its sum.

    Attributes
    ----------
    shape : tuple of int
        Of the cache.
    count : int
        New rows.
    own : bool
        Whether each sequence has row numbers of its own, of the forms that take one line for all as well.
    """

    form: str
    shape: tuple[int, ...]
    axis: int
    count: int
    kind: str = "int64"
    own: bool = False

    @property
    def new(self) -> tuple[int, ...]:
        """Shape of the new rows."""
        return (*self.shape[: self.axis], self.count, *self.shape[self.axis + 1 :])

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of their numbers: one for each sequence, or one line."""
        if self.form in ("tensor", "circular"):
            return self.shape[:1]
        if self.form.startswith("where"):
            return (self.shape[0], 1) if self.axis else (1,)
        return (self.shape[0], self.count) if self.own else (self.count,)

    def inputs(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw arrays."""
        length, most = self.shape[self.axis], self.shape[self.axis] - self.count
        if self.form in ("elements", "nd", "coordinates", "pairs"):
            lines = [random.permutation(length)[: self.count] for _ in range(self.shape[0] if self.own else 1)]
            rows = np.array(lines).reshape(self.rows)
            rows = np.where(random.random(self.rows) < 0.3, rows - length, rows)  # some count from the end
        else:
            rows = random.integers(0, (length if self.form == "circular" else most) + 1, self.rows) % length
        return {
            "past": random.standard_normal(self.shape).astype("float32"),
            "new": random.standard_normal(self.new).astype("float32"),
            "rows": rows.astype(self.kind),
        }

    def model(self, more: tuple[onnx.NodeProto, ...] = (), results: tuple[str, ...] = ()) -> onnx.ModelProto:
        """Return the graph, with further nodes and results."""
        held, rank = {}, len(self.shape)
        ones = [1] * rank

        def constant(array) -> str:
            name = f"c{len(held)}"
            held[name] = numpy_helper.from_array(np.asarray(array), name)
            return name

        def node(op: str, *inputs: str, name: str, **attrs) -> onnx.NodeProto:
            return helper.make_node(op, list(inputs), [name], **attrs)

        along = [*ones[: self.axis], -1, *ones[self.axis + 1 :]]
        if self.form.startswith("where"):
            batch = [self.shape[0] if self.axis else 1, *ones[1:]]
            counted = constant(np.arange(self.shape[self.axis], dtype=self.kind).reshape(along))
            same = node("Equal", counted, "at", name="same")
            chosen = node("Where", "same", "new", "past", name="present")
            if self.form == "where-not":
                same = node("Equal", "at", counted, name="equal")
                chosen = node("Where", "same", "past", "new", name="present")
            nodes = [node("Reshape", "rows", constant(np.array(batch)), name="at"), same, chosen]
            if self.form == "where-not":
                nodes.insert(2, node("Not", "equal", name="same"))
        elif self.form == "elements":
            nodes = [
                node("Reshape", "rows", constant(np.array(self.lines(along))), name="at"),
                node("Expand", "at", constant(np.array(self.new)), name="every"),
                node("ScatterElements", "past", "every", "new", name="present", axis=self.axis),
            ]
        elif self.form == "coordinates":  # as many as there are dimensions up to the axis, and one more if there is one
            grid = self.new[: self.axis + 2]
            counted = [constant(np.indices(grid)[at][..., None]) for at in range(len(grid))]
            counted[self.axis] = "column"
            flat = [-1 if at == self.axis else 1 for at in range(len(grid))]
            nodes = [
                node("Reshape", "rows", constant(np.array(self.lines(flat))), name="at"),
                node("Expand", "at", constant(np.array(grid)), name="every"),
                node("Unsqueeze", "every", constant(np.array([-1])), name="column"),
                node("Concat", *counted, name="places", axis=-1),
                node("ScatterND", "past", "places", "new", name="present"),
            ]
        elif self.form == "pairs":
            order = [0, self.axis, *(at for at in range(1, rank) if at != self.axis)]
            numbers = constant(np.broadcast_to(np.arange(self.shape[0])[:, None, None], (*self.rows, 1)).copy())
            nodes = [
                node("Unsqueeze", "rows", constant(np.array([-1])), name="column"),
                node("Concat", numbers, "column", name="places", axis=-1),
                node("Transpose", "past", name="turned", perm=order),
                node("Transpose", "new", name="turned_new", perm=order),
                node("ScatterND", "turned", "places", "turned_new", name="written"),
                node("Transpose", "written", name="present", perm=[order.index(at) for at in range(rank)]),
            ]
        elif self.form == "nd":
            order = [self.axis, *(at for at in range(rank) if at != self.axis)]
            nodes = [
                node("Unsqueeze", "rows", constant(np.array([-1])), name="at"),
                node("Transpose", "past", name="turned", perm=order),
                node("Transpose", "new", name="turned_new", perm=order),
                node("ScatterND", "turned", "at", "turned_new", name="written"),
                node("Transpose", "written", name="present", perm=[order.index(at) for at in range(rank)]),
            ]
        else:
            mode = "circular" if self.form == "circular" else "linear"
            nodes = [node("TensorScatter", "past", "new", "rows", name="present", axis=self.axis, mode=mode)]
        nodes.append(node("ReduceSum", "present", name="total", keepdims=0))
        kinds = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}
        info = helper.make_tensor_value_info
        inputs = [info("past", 1, self.shape), info("new", 1, self.new), info("rows", kinds[self.kind], self.rows)]
        outputs = [info("total", 1, None), info("present", 1, self.shape), *(info(each, 1, None) for each in results)]
        graph = helper.make_graph([*nodes, *more], "update", inputs, outputs, list(held.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)

    def lines(self, along: list[int]) -> list[int]:
        """Return the shape of row numbers among the dimensions of the cache."""
        return [self.shape[0], *along[1:]] if self.own else along

    @property
    def new_numbers(self) -> int:
        """Numbers that a run has to write."""
        return prod(self.new)


def drawn(form: str, random: np.random.Generator) -> Update:
    """Return an update of a form with sizes at random: primes, ones, and all equal."""
    rank = int(random.integers(2, 5))
    shape = [2] * rank if random.random() < 0.2 else [int(each) for each in random.choice([1, 2, 3, 5, 7], rank)]
    axis = int(random.integers(1 if form in ("tensor", "circular", "pairs") else 0, rank))
    shape[axis] = int(random.integers(2, 9))
    count = 1 if form.startswith("where") else int(random.integers(1, shape[axis] + 1))
    kind = "int64" if form in ("nd", "coordinates", "pairs") or random.random() < 0.5 else "int32"
    if form in ("tensor", "circular"):
        kind = "int64"
    own = form == "pairs" or (form in ("elements", "coordinates") and axis > 0 and random.random() < 0.5)
    return Update(form, tuple(shape), axis, count, kind, own)


def expected(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return session.run(None, arrays)
