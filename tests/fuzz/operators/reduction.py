# SPDX-License-Identifier: Apache-2.0
"""Operators along axes: sums, extremes, sorts, normalizations."""

import numpy as np

from ..drawing import FLOATS, NUMBERS, Drawing, NotDrawn
from .arithmetic import POSITIVE, into
from .table import draws

SUMS = ["ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd"]


def reduce(g: Drawing, op: str, x: str, axes: list[int] | None, keep: int | None = None) -> str:
    """A reduction, whose axes are an attribute or an input, as its opset has it."""
    attributes = {} if keep is None else {"keepdims": keep}
    if axes is None:
        return g.node(op, [x], **attributes)
    if op == "ReduceSum" or g.opset >= 18:
        if not axes or g.chance(0.1):
            attributes["noop_with_empty_axes"] = g.between(0, 1)
        return g.node(op, [x, g.constant(axes, "int64")], **attributes)
    return g.node(op, [x], axes=axes, **attributes) if axes else g.node(op, [x], **attributes)


@draws(5)
def reductions(g: Drawing):
    op = g.pick([*SUMS, "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMax", "ReduceMin", "ReduceLogSum"])
    if op == "ReduceLogSum":
        x = into(g, POSITIVE)
    else:
        every = op in ("ReduceMax", "ReduceMin", "ReduceSum")
        # Of integers it is cut off to one, where rounding decides.
        integers = () if op == "ReduceLogSumExp" else ("int32", "int64")
        x = g.tensor(NUMBERS if every else (*FLOATS, *integers), below=200)
    if op == "ReduceProd" and np.abs(g.values[x].astype("f8")).clip(1).prod() > 1e6:
        raise NotDrawn
    rank = g.values[x].ndim
    axes = None if g.chance(0.1) else g.axes(rank, 1 if rank and g.chance(0.95) else 0)
    reduce(g, op, x, axes, g.pick([None, 0, 0, 1]))


@draws(2)
def arg(g: Drawing):
    x = g.tensor((*FLOATS, "int32", "int64", "uint8", "int8"), 1)
    if np.isnan(g.values[x].astype("f8")).any():  # whether it is the largest is not specified
        raise NotDrawn
    last = {"select_last_index": 1} if g.chance(0.25) else {}
    g.node(g.pick(["ArgMax", "ArgMin"]), [x], axis=g.axis(g.values[x].ndim), keepdims=g.between(0, 1), **last)


@draws(1.5)
def cum_sum(g: Drawing):
    x = g.tensor((*FLOATS, "int32", "int64"), 1, below=500)
    axis = g.constant(g.axis(g.values[x].ndim), g.pick(["int32", "int64"]))
    g.node("CumSum", [x, axis], exclusive=g.between(0, 1), reverse=g.between(0, 1))


@draws(1.5)
def top_k(g: Drawing):
    x = g.tensor((*FLOATS, "int32", "int64"), 1)
    if np.isnan(g.values[x].astype("f8")).any():  # where it belongs is not specified
        raise NotDrawn
    axis = g.axis(g.values[x].ndim)
    size = g.values[x].shape[axis]
    if not size:
        raise NotDrawn
    k = g.constant([g.between(1, size)], "int64")
    g.node("TopK", [x, k], 2, axis=axis, largest=g.between(0, 1), sorted=1)


def computed_alone(g: Drawing, x: str, count: int) -> bool:
    """Whether each number is without others, and may be computed twice: what is left without its mean is rounding."""
    return count == 1 and any(x in node.output for node in g.nodes)


@draws(4)
def softmax(g: Drawing):
    x = g.tensor(FLOATS, 1)
    axis = {} if g.chance(0.2) else {"axis": g.axis(g.values[x].ndim)}
    if computed_alone(g, x, g.values[x].shape[axis.get("axis", -1)]):
        raise NotDrawn
    g.node(g.pick(["Softmax", "Softmax", "LogSoftmax"]), [x], **axis)


@draws(0.5)
def hardmax(g: Drawing):
    x = g.tensor(FLOATS, 1, where=lambda v: not np.isnan(v.astype("f8")).any())  # as of ArgMax
    g.node("Hardmax", [x], axis=g.axis(g.values[x].ndim))


@draws(3)
def layer_normalization(g: Drawing):
    x = g.tensor(FLOATS, 1)
    shape, kind = g.values[x].shape, str(g.values[x].dtype)
    axis = g.axis(len(shape)) if g.chance(0.5) else -1
    if computed_alone(g, x, int(np.prod(shape[axis:]))):
        raise NotDrawn
    given = [g.given(g.numbers(shape[axis:], kind, 3))]
    given += [g.given(g.numbers(shape[axis:], kind, 3))] if g.chance(0.7) else []
    op = "RMSNormalization" if g.opset >= 23 and len(given) == 1 else "LayerNormalization"
    g.node(op, [x, *given], axis=axis, epsilon=g.pick([1e-5, 1e-2]))


def channels(g: Drawing, x: str, count: int, least: float = -3.0) -> str:
    """A number for each channel."""
    value = g.rng.uniform(least, 2.0, count).astype(g.values[x].dtype)
    return g.constant(value) if g.chance(0.8) else g.given(value)


@draws(2)
def instance_normalization(g: Drawing):
    x = g.tensor(FLOATS, 3, 5, where=lambda v: v.size > 0)  # ONNX Runtime crashes on nothing
    count = g.values[x].shape[1]
    if computed_alone(g, x, int(np.prod(g.values[x].shape[2:]))):
        raise NotDrawn
    given = [channels(g, x, count) for _ in "ab"]
    groups = g.pick([n for n in range(1, count + 1) if count % n == 0] or [1])
    # Of doubles it computes the statistics in float32 (stash_type).
    if g.opset >= 21 and g.chance(0.5) and g.values[x].dtype != np.float64:
        g.node("GroupNormalization", [x, *given], num_groups=groups, epsilon=1e-3)
    else:
        g.node("InstanceNormalization", [x, *given], epsilon=1e-3)


@draws(2)
def batch_normalization(g: Drawing):
    x = g.tensor(FLOATS, 2, 5)
    count = g.values[x].shape[1]
    given = [channels(g, x, count) for _ in "abc"]
    g.node("BatchNormalization", [x, *given, channels(g, x, count, 0.1)], epsilon=1e-3)


@draws(0.5)
def other_normalization(g: Drawing):
    if g.chance(0.5):
        x = g.tensor(FLOATS, 1)
        g.node("LpNormalization", [x], axis=g.axis(g.values[x].ndim), p=g.between(1, 2))
    elif g.chance(0.5):
        # ONNX Runtime takes from a running sum what leaves it: after an infinite number all are nan.
        x = g.tensor(("float32",), 4, 4, where=lambda v: bool(np.isfinite(v).all()))
        g.node("LRN", [x], size=g.pick([1, 3, 5]), alpha=0.1, beta=0.5, bias=1.5)
    else:
        x = g.tensor(FLOATS, 3)
        axes = g.axes(g.values[x].ndim, 1)
        if computed_alone(g, x, int(np.prod([g.values[x].shape[axis] for axis in axes]))):
            raise NotDrawn
        g.node("MeanVarianceNormalization", [x], axes=axes)
