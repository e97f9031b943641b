# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime computes without optimizations, and how far rounding may move each number of it.

How far: the model runs again, some times, with every rounded result multiplied by a number near 1 (Monte Carlo
arithmetic: Parker, 1997). What moves then is what another order of sums may move too, be it a little by cancellation or
to another whole number by a `Floor`; what stays must be computed exactly so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

# Results of these are numbers that are there already (or whole ones): they are not rounded.
_EXACT = """
    Abs ArgMax ArgMin Ceil Clip Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten
    Floor Gather GatherElements GatherND GlobalMaxPool Identity Max MaxPool Min Neg NonZero OneHot Pad Range
    ReduceMax ReduceMin Relu Reshape ReverseSequence Round ScatterElements ScatterND Shape Sign Size Slice
    SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where
"""
EXACT = frozenset(_EXACT.split())
CENTERED = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}
"""Operators that take a rounded mean from their numbers: of equal numbers what is left is rounding alone."""
PARAMETERS = {"Resize": (1, 2), "Pad": (2,), "Clip": (1, 2), "OneHot": (2,), "BatchNormalization": (4,)}
"""Operator -> its inputs that are no data: a changed scale of a `Resize` changes the shape."""
STEP = {np.dtype("float16"): 2.0**-11, np.dtype("float32"): 2.0**-22, np.dtype("float64"): 2.0**-32}
"""How far a rounded result may be from the exact one: a few units in the last place, for polynomials too.

In float64 it is more: attributes of nodes are in float32, and their defaults one reads as 0.2, the other as float(0.2).
"""
MARGIN = 16  # how much larger than what was seen to move the errors may be
_LEVELS = onnxruntime.GraphOptimizationLevel
_FLOATS = {TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE}


class Refused(Exception):
    """ONNX Runtime does not load or run the model."""


def session(model: onnx.ModelProto, level=_LEVELS.ORT_DISABLE_ALL) -> onnxruntime.InferenceSession:
    """ONNX Runtime for a model, by default as it is, on one thread.

    Raises
    ------
    Refused
        If it does not load it.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base class
        raise Refused(str(error)) from error


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model.

    Raises
    ------
    Refused
        If ONNX Runtime does not load or run it.
    """
    return _run(session(model), inputs)


def _run(made: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = {each.name for each in made.get_inputs()}
    try:
        return made.run(None, {name: np.asarray(value) for name, value in inputs.items() if name in names})
    except Exception as error:
        raise Refused(str(error)) from error


@dataclass
class Expected:
    """One output.

    Attributes
    ----------
    value : numpy.ndarray
    moved : numpy.ndarray
        How far rounding moved each element, as float64; infinite where it came or went as NaN or infinity.
    """

    value: np.ndarray
    moved: np.ndarray

    @property
    def tolerance(self) -> np.ndarray:
        """How far each element of a right result may be away; infinite where nothing can be said."""
        if self.value.dtype.kind != "f":
            return np.where(self.moved > 0, np.inf, 0.0)
        step = STEP[self.value.dtype]
        size = np.abs(np.where(np.isfinite(self.value), self.value, 0).astype("f8"))
        smooth = self.moved[self.moved <= 0.01 * (size + np.max(size, initial=0.0))]
        usual = np.median(smooth) if smooth.size else 0.0
        least = float(np.finfo(self.value.dtype).smallest_subnormal)  # the step of those that no factor moves
        return MARGIN * np.maximum(self.moved, usual) + 8 * step * (size + np.max(size, initial=0.0)) + 2 * least

    def where_finite(self) -> Expected:
        """The same, with nothing said of numbers that are infinite, or none."""
        if self.value.dtype.kind != "f":
            return self
        return Expected(self.value, np.where(np.isfinite(self.value), self.moved, np.inf))

    @property
    def loose(self) -> float:
        """The share of elements of which next to nothing is known."""
        size = np.max(np.abs(self.value[np.isfinite(self.value)].astype("f8")), initial=0.0)
        return float(np.mean(self.tolerance > 0.1 * size)) if self.value.size and size else 0.0

    def fault(self, got: np.ndarray) -> str:
        """What is wrong with a result, or nothing."""
        if got.dtype != self.value.dtype or got.shape != self.value.shape:
            return f"{got.dtype}{list(got.shape)} for {self.value.dtype}{list(self.value.shape)}"
        tolerance = self.tolerance
        with np.errstate(invalid="ignore", over="ignore"):
            away = np.abs(got.astype("f8") - self.value.astype("f8"))
            if self.value.dtype.kind in "iu":
                away = np.where(got == self.value, 0.0, np.maximum(away, 1.0))
        same = (got == self.value) | (np.isnan(got.astype("f8")) & np.isnan(self.value.astype("f8")))
        bad = ~same & (~(away <= tolerance)) & np.isfinite(tolerance)
        if not bad.any():
            return ""
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        return (
            f"{int(bad.sum())} of {bad.size} numbers are wrong, the first at {first}: "
            f"{got[first]} for {self.value[first]} (tolerance {tolerance[first]:.2g})"
        )


def every(case) -> dict[str, np.ndarray]:
    """Each result of each node of a case, by name.

    Raises
    ------
    Refused
        If ONNX Runtime does not load or run the model.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [name for node in model.graph.node for name in node.output if name]
    _replace(model.graph.output, [helper.make_empty_tensor_value_info(name) for name in names])
    return dict(zip(names, run(model, case.inputs), strict=True))


def expected(case, runs: int = 3, scale: float = 1.0, optimized: bool = False) -> list[Expected]:
    """What the outputs of a case should be.

    Parameters
    ----------
    case : Case
    runs : int
        How many times it runs with other roundings.
    scale : float
        How much coarser than `STEP` these are.
    optimized : bool
        Whether ONNX Runtime with its optimizations counts as another rounding: of a chain of operators on halves it
        leaves out some of the roundings between them, but not all, so that two equal numbers become different ones.

    Raises
    ------
    Refused
        If ONNX Runtime does not load or run the model.
    """
    exact = every(case)
    outputs = [exact[value.name] for value in case.model.graph.output]
    moved = [np.zeros(value.shape) for value in outputs]
    noisy, data, factors, ties = _with_noise(case, exact)
    made, generator = session(noisy), np.random.default_rng(0)
    for _ in range(runs):
        feeds = {**case.inputs, **{name: _noise(value, generator, scale) for name, value in data.items()}}
        for name, (shape, step) in factors.items():
            feeds[name] = 1 + 2 * scale * step * (2 * generator.random(shape) - 1)
        for name, near in ties.items():
            feeds[name] = near & (generator.random(near.shape) < 0.5)
        for far, value, other in zip(moved, outputs, _run(made, feeds), strict=True):
            np.maximum(far, _distance(value, other), out=far)
    for level in (_LEVELS.ORT_ENABLE_BASIC, _LEVELS.ORT_ENABLE_ALL) if optimized else ():
        try:
            others = _run(session(case.model, level), case.inputs)
        except Refused:
            continue  # its optimizations make some graphs into ones that it does not load
        for far, value, other in zip(moved, outputs, others, strict=True):
            if value.shape == other.shape:
                np.maximum(far, _distance(value, other), out=far)
    return [Expected(value, far) for value, far in zip(outputs, moved, strict=True)]


def _distance(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "f":
        return (value != other).astype("f8")
    finite, same = np.isfinite(value) & np.isfinite(other), (value == other) | (np.isnan(value) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.where(finite, np.abs(value.astype("f8") - other.astype("f8")), np.inf))


def _noise(value: np.ndarray, generator: np.random.Generator, scale: float) -> np.ndarray:
    """Numbers that are not whole, each a little off: whole ones may be what a test for equality is about."""
    step = 2 * scale * STEP[value.dtype]
    with np.errstate(invalid="ignore"):
        off = (value.astype("f8") * generator.uniform(1 - step, 1 + step, value.shape)).astype(value.dtype)
        return np.where(value == np.round(value), value, off)


def _with_noise(case, exact: dict) -> tuple[onnx.ModelProto, dict, dict, dict]:
    """The model with each rounded result times a further input.

    Noise makes different numbers of equal ones, but never equal ones of different ones: where two that are compared are
    a rounding apart, a further input says that they are equal.

    Returns
    -------
    tuple
        The model; the inputs and constants that are data; name of a further input -> its shape, the step of its type;
        name of a further input of truth values -> where it may be true.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    data = _lift_constants(model.graph) | {name: value for name, value in case.inputs.items() if value.dtype in STEP}
    nodes, factors, ties = [], {}, {}
    known = exact | data

    def rounded(name: str, value: np.ndarray) -> list[onnx.NodeProto]:
        factors[f"{name} factor"] = value.shape, STEP[value.dtype]
        return _product(name, helper.np_dtype_to_tensor_dtype(value.dtype))

    for node in model.graph.node:
        if node.op_type in CENTERED and node.input[0] in known:
            name = f"{node.output[0]} from"
            nodes.append(helper.make_node("Identity", [node.input[0]], [f"{name} exact"]))
            nodes += rounded(name, known[node.input[0]])
            node.input[0] = name
        nodes.append(node)
        for i, name in enumerate(node.output):
            if node.op_type not in EXACT and name and exact[name].dtype in STEP:
                node.output[i] = f"{name} exact"
                nodes += rounded(name, exact[name])
        if node.op_type == "Equal" and (near := _nearly_equal(*(known.get(each) for each in node.input))).any():
            (name,) = node.output
            ties[f"{name} tie"], node.output[0] = near, f"{name} exact"
            nodes.append(helper.make_node("Xor", [node.output[0], f"{name} tie"], [name]))
    _replace(model.graph.node, nodes)
    more = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in factors]
    more += [helper.make_tensor_value_info(name, TensorProto.BOOL, None) for name in ties]
    model.graph.input.extend(more)
    return model, data, factors, ties


def _nearly_equal(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray:
    """Where two tensors of floats differ by a few roundings."""
    if a is None or b is None or a.dtype not in STEP:
        return np.zeros((), bool)
    with np.errstate(invalid="ignore"):
        return (a != b) & (np.abs(a.astype("f8") - b.astype("f8")) <= 4 * STEP[a.dtype] * np.abs(a.astype("f8")))


def _product(name: str, kind: int) -> list[onnx.NodeProto]:
    """Nodes that make a tensor: the one with `` exact`` to its name times the one with `` factor``."""
    exact, wide, factor, product = (f"{name} {what}" for what in ("exact", "wide", "factor", "product"))
    return [
        helper.make_node("Cast", [exact], [wide], to=TensorProto.DOUBLE),
        helper.make_node("Mul", [wide, factor], [product]),
        helper.make_node("Cast", [product], [name], to=kind),
    ]


def _lift_constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Turn floating constants into inputs, but for parameters; what they were."""
    fixed = {n for node in graph.node for i in PARAMETERS.get(node.op_type, ()) for n in node.input[i : i + 1]}
    fixed |= {value.name for value in graph.output}
    lifted, initializers, nodes = {}, [], []
    for tensor in graph.initializer:
        if tensor.data_type in _FLOATS and tensor.name not in fixed:
            lifted[tensor.name] = numpy_helper.to_array(tensor)
        else:
            initializers.append(tensor)
    for node in graph.node:
        value = node.attribute[0].t if node.op_type == "Constant" and node.attribute[0].name == "value" else None
        if value is not None and value.data_type in _FLOATS and node.output[0] not in fixed:
            lifted[node.output[0]] = numpy_helper.to_array(value)
        else:
            nodes.append(node)
    _replace(graph.initializer, initializers)
    _replace(graph.node, nodes)
    graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in lifted.items()
    )
    return lifted


def _replace(field, messages: list) -> None:
    """Let a repeated field hold these."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del field[:]
    field.extend(copies)
