# SPDX-License-Identifier: Apache-2.0
"""Nodes of old versions with everything drawn that these say, many in one graph, beside numpy."""

import random

import numpy as np
import onnx
import pytest
from onnx import helper

import smartmem_tvm as sm
from smartmem_tvm.frontend.converters.old_forms import RENEW
from smartmem_tvm.frontend.old_versions import ENDED
from smartmem_tvm.pipeline import Options

NUMBERS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
SIZES = (1, 1, 2, 3, 3, 3, 4, 5)


class Drawn:
    """One graph: each node reads inputs of its own, and each of its results is one of the graph's."""

    def __init__(self, seed):
        self.random, self.numbers = random.Random(seed), np.random.RandomState(seed)
        self.nodes, self.feeds, self.expected, self.stated = [], {}, {}, {}

    def shape(self, low=1, high=4):
        return tuple(self.random.choice(SIZES) for _ in range(self.random.randint(low, high)))

    def given(self, *shape):
        name = f"x{len(self.feeds)}"
        self.feeds[name] = (self.numbers.randn(*shape) * 2).astype("f4")
        return name, self.feeds[name]

    def constant(self, value, dtype):
        name = f"c{len(self.stated)}"
        self.stated[name] = np.asarray(value, dtype)
        return name

    def add(self, op, inputs, results, **attrs):
        names = [f"y{len(self.expected) + n}" for n in range(len(results))]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        self.expected.update(zip(names, results))

    def model(self, opset):
        info = lambda name, v: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)  # noqa: E731
        stated = [onnx.numpy_helper.from_array(value, name) for name, value in self.stated.items()]
        inputs, outputs = ([info(*each) for each in held.items()] for held in (self.feeds, self.expected))
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, stated)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def broadcast(d, opset):
    """Sizes, where the second operand begins, counted from either end, and whether that is said."""
    x, a = d.given(*d.shape())
    begin = d.random.randrange(a.ndim)
    end = d.random.randint(begin + 1, a.ndim)
    y, b = d.given(*a.shape[begin:end])
    b += np.sign(b)
    op = d.random.choice([*NUMBERS])
    attrs = {"broadcast": 1}
    if end < a.ndim or d.random.random() < 0.5:
        attrs["axis"] = begin - a.ndim * (d.random.random() < 0.3)
    d.add(op, [x, y], [NUMBERS[op](a, b.reshape(*b.shape, *[1] * (a.ndim - end)))], **attrs)


def slopes(d, opset):
    x, a = d.given(*d.shape(2))
    y, b = d.given(a.shape[1] if d.random.random() < 0.7 else 1)
    d.add("PRelu", [x, y], [np.where(a < 0, a * b.reshape(-1, *[1] * (a.ndim - 2)), a)])


def flat(d, opset):
    """Softmax and its like from each axis on."""
    x, a = d.given(*d.shape())
    a += np.arange(a.size).reshape(a.shape) * 1e-3  # no two alike
    axis = d.random.randrange(a.ndim)
    attrs = {"axis": axis - a.ndim * (opset >= 11 and d.random.random() < 0.3)}
    if a.ndim > 1 and d.random.random() < 0.3:
        axis, attrs = 1, {}
    rows = a.reshape(int(np.prod(a.shape[:axis])), -1)
    powers = np.exp(rows - rows.max(1, keepdims=True))
    soft = powers / powers.sum(1, keepdims=True)
    hard = np.eye(rows.shape[1], dtype="f4")[rows.argmax(1)]
    op, value = d.random.choice([("Softmax", soft), ("LogSoftmax", np.log(soft)), ("Hardmax", hard)])
    d.add(op, [x], [value.reshape(a.shape)], **attrs)


def slice_(d, opset):
    x, a = d.given(*d.shape())
    axes = d.random.sample(range(a.ndim), d.random.randint(1, a.ndim))
    if d.random.random() < 0.3:
        axes = list(range(len(axes)))
    index, starts, ends = [slice(None)] * a.ndim, [], []
    for axis in axes:
        size = a.shape[axis]
        start = d.random.randrange(size)
        end = d.random.randint(start + 1, size)
        index[axis] = slice(start, end)
        starts.append(start - size * (d.random.random() < 0.3))
        ends.append(d.random.choice([1000, 2**31 - 1]) if end == size else end - size * (d.random.random() < 0.3))
    said = {} if axes == list(range(len(axes))) and d.random.random() < 0.7 else {"axes": axes}
    d.add("Slice", [x], [a[tuple(index)]], starts=starts, ends=ends, **said)


def pad(d, opset):
    x, a = d.given(*d.shape())
    mode = d.random.choice(["constant", "reflect", "edge"])
    most = [2 if mode != "reflect" else min(2, n - 1) for n in a.shape]
    widths = [(d.random.randint(0, n), d.random.randint(0, n)) for n in most]
    attrs = {} if mode == "constant" and d.random.random() < 0.5 else {"mode": mode}
    value = {"constant_values": 1.5} if mode == "constant" and d.random.random() < 0.5 else {}
    attrs |= {"value": 1.5} if value else {}
    attrs["pads" if opset > 1 else "paddings"] = [w[side] for side in (0, 1) for w in widths]
    d.add("Pad", [x], [np.pad(a, widths, mode, **value)], **attrs)


def split(d, opset):
    x, a = d.given(*d.shape())
    axis = d.random.randrange(a.ndim)
    places = sorted(d.random.sample(range(1, a.shape[axis]), d.random.randint(0, min(2, a.shape[axis] - 1))))
    parts = np.split(a, places, axis)
    sizes, inputs = [part.shape[axis] for part in parts], [x]
    attrs = {"axis": axis}
    if opset == 1 and d.random.random() < 0.5:
        inputs.append(d.constant(sizes, "f4"))
    elif len(set(sizes)) > 1 or d.random.random() < 0.5:
        attrs["split"] = sizes
    d.add("Split", inputs, parts, **attrs)


def others(d, opset):
    x, a = d.given(*d.shape())
    axes = sorted(d.random.sample(range(a.ndim + 1), d.random.randint(1, min(2, a.ndim + 1))))
    wide = np.expand_dims(a, [axis + n for n, axis in enumerate(axes)])
    d.add("Unsqueeze", [x], [wide], axes=[axis + n for n, axis in enumerate(axes)])
    name, b = d.given(*wide.shape)
    single = [axis for axis, size in enumerate(b.shape) if size == 1]
    axes = d.random.sample(single, d.random.randint(1, len(single)))
    d.add("Squeeze", [name], [b.squeeze(tuple(axes))], axes=axes)
    axes = d.random.sample(range(a.ndim), d.random.randint(1, a.ndim))
    d.add("ReduceSum", [x], [a.sum(tuple(axes), keepdims=True)], axes=axes)
    low = d.random.choice([{"min": -0.5}, {}])
    high = d.random.choice([{"max": 0.75}, {}])
    d.add("Clip", [x], [np.clip(a, low.get("min", -9e9), high.get("max", 9e9))], **low, **high)


def oldest(d, opset):
    """Forms of the first opsets alone."""
    if opset > 1:
        return
    x, a = d.given(*d.shape())
    axis, count = d.random.randrange(a.ndim), d.random.randint(1, 3)
    repeats = [count if n == axis else 1 for n in range(a.ndim)]
    d.add("Tile", [x, d.constant(count, "f4"), d.constant(axis, "f4")], [np.tile(a, repeats)])
    d.add("Reshape", [x], [a.reshape(a.shape[0], -1)], shape=[0, -1])
    k = d.random.randint(1, a.shape[axis])
    order = np.argsort(-a, axis, kind="stable").take(range(k), axis)
    d.add("TopK", [x], [np.take_along_axis(a, order, axis), order], k=k, axis=axis)
    d.add("Cast", [x], [a.astype("i4")], to="INT32")
    n = d.random.randint(2, 3)
    y, b = d.given(*a.shape)
    if a.ndim > 1:
        d.add("Concat", [x, y] + [x] * (n - 2), [np.concatenate([a, b] + [a] * (n - 2), 1)])


OF_OPSETS = {
    1: (broadcast, slopes, flat, slice_, pad, split, others, oldest),
    6: (broadcast, slopes, flat, slice_, pad, split, others),
    9: (flat, slice_, pad, split, others),
    12: (flat, split),
}


def check(opset, seed, rounds):
    drawn = Drawn(seed)
    for each in OF_OPSETS[opset]:
        for _ in range(rounds):
            each(drawn, opset)
    mod = sm.from_onnx(drawn.model(opset))
    got = sm.compile(mod, options=Options(schedule=False, fuse=False, eliminate=False)).run(**drawn.feeds)
    for (name, right), mine in zip(drawn.expected.items(), got, strict=True):
        node = next(node for node in drawn.nodes if name in node.output)
        assert mine.shape == right.shape and mine.dtype == right.dtype, node
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5, err_msg=str(node))


@pytest.mark.parametrize("opset", OF_OPSETS)
def test_old_forms_at_random(opset):
    check(opset, opset, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("opset", OF_OPSETS)
def test_many_old_forms(opset, seed):
    check(opset, 100 + seed, rounds=5)


def test_each_form_that_ended_has_a_version():
    assert {op: len(rules) for op, rules in RENEW.items()} == {op: len(numbers) for op, numbers in ENDED.items()}
    assert all(list(numbers) == sorted(numbers) for numbers in ENDED.values())
    since = {(each.name, each.since_version) for each in onnx.defs.get_all_schemas_with_history() if each.domain == ""}
    assert all((op, before) in since for op, numbers in ENDED.items() for before in numbers)


def one(op, opset, inputs, *, outputs=1, **attrs):
    """A model of one node, which has inputs of these shapes."""
    names = [f"x{n}" for n in range(len(inputs))]
    given = [helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, inputs)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    sizes = [f"d{n}" for n in range(len(inputs[0]))]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info(name, 1, sizes) for name in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            one("Add", 6, [(2, 3), (3, 4)], broadcast=1, axis=1),
            "its second input has 2 axes, and begins at axis 1 of 2",
        ),
        (one("Cast", 1, [(2, 3)], to="REAL"), "its type is called 'REAL', and ONNX knows no such type"),
        (one("BatchNormalization", 6, [(1, 2, 3), *[(2,)] * 4]), r"it is in training mode \(is_test is 0\)"),
        (one("GlobalLpPool", 1, [(1, 2, 3, 3)], p=1.5), "its order p is 1.5, and only whole ones are supported"),
        (one("Tile", 1, [(2, 3), (), ()]), "its tiles and axis are known only at run time"),
        (one("Split", 1, [(2, 3), (2,)], outputs=2), "its sizes are known only at run time"),
    ],
)
def test_what_is_refused(model, reason):
    with pytest.raises(sm.UserError, match=reason):
        sm.from_onnx(model)
