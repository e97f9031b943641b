# SPDX-License-Identifier: Apache-2.0
"""Slices of the last positions before operators that work position by position: drawn chains beside ONNX Runtime."""

import numpy as np
import pytest
from onnx import helper

from open_models import N, check, compiled, dims, model, weights
from smartmem_tvm import from_onnx
from smartmem_tvm.analysis.items import bindings_of, operator_of
from smartmem_tvm.frontend.early_slices import early_slices, with_early_slices
from smartmem_tvm.ir.public_functions import MAIN

WIDTH = 4
KINDS = ["product", "unary", "twice", "norm", "turned", "joined", "attention", "constant", *["causal"] * 4]


def _causal(held):
    """Operators of a mask that all attentions read: of earlier positions, and of those whose first number is large."""
    held |= {"n9": np.tri(9, dtype=bool), "zeros": np.array([0, 0]), "both": np.array([0, 1]), "two": np.array([2])}
    held |= {"nought": np.array([0]), "single": np.array([1]), "edge": np.float32(-0.5), "not": np.float32(-1e9)}
    held |= {"none": np.float32(0)}
    return [
        ("Shape", ["x"], "n", {"start": 1, "end": 2}),
        ("Concat", ["n", "n"], "ends", {"axis": 0}),
        ("Slice", ["n9", "zeros", "ends", "both"], "tri", {}),
        ("Slice", ["x", "nought", "single", "two"], "x0", {}),
        ("Transpose", ["x0"], "keys", {"perm": [0, 2, 1]}),
        ("Greater", ["keys", "edge"], "large", {}),
        ("And", ["tri", "large"], "seen", {}),
        ("Where", ["seen", "none", "not"], "bias", {}),
    ]


def _steps(random, last, held, count):
    """Operators that work position by position on (1, n, width), and some that do not; the last tensor."""
    nodes = []
    for number in range(count):
        kind = str(random.choice(KINDS))
        name, own = f"t{number}", f"{number}"
        if kind == "product":
            held[f"w{own}"] = weights(WIDTH, WIDTH, seed=number) / np.float32(2)
            nodes.append(("MatMul", [last, f"w{own}"], name, {}))
        elif kind == "unary":
            nodes.append((str(random.choice(["Tanh", "Relu", "Sigmoid", "Abs"])), [last], name, {}))
        elif kind == "twice":
            nodes += [("Tanh", [last], f"a{own}", {}), ("Mul", [f"a{own}", last], name, {})]
        elif kind == "norm":
            nodes.append(("Softmax", [last], name, {"axis": -1}))
        elif kind == "turned":
            held[f"w{own}"] = weights(1, WIDTH, 1, seed=number)
            nodes.append(("Transpose", [last], f"a{own}", {"perm": [0, 2, 1]}))
            nodes += [
                ("Add", [f"a{own}", f"w{own}"], f"b{own}", {}),
                ("Transpose", [f"b{own}"], name, {"perm": [0, 2, 1]}),
            ]
        elif kind == "joined":
            held |= {"rows": np.array([-1, WIDTH]), "one": np.array([1, -1, WIDTH])}
            held[f"w{own}"] = weights(WIDTH, WIDTH, seed=number) / np.float32(2)
            nodes += [("Reshape", [last, "rows"], f"a{own}", {}), ("MatMul", [f"a{own}", f"w{own}"], f"b{own}", {})]
            nodes.append(("Reshape", [f"b{own}", "one"], name, {}))
        elif kind == "constant":
            held[f"w{own}"] = weights(WIDTH, seed=number)
            nodes.append(("Add", [f"w{own}", last], name, {}))
        else:
            nodes.append(("Transpose", [last], f"a{own}", {"perm": [0, 2, 1]}))
            nodes.append(("MatMul", [last, f"a{own}"], f"b{own}", {}))
            if kind == "causal":
                nodes = nodes if "n9" in held else [*_causal(held), *nodes]
                nodes[-1] = ("MatMul", [last, f"a{own}"], f"e{own}", {})
                nodes.append(("Add", [f"e{own}", "bias"], f"b{own}", {}))
            nodes.append(("Softmax", [f"b{own}"], f"c{own}", {"axis": -1}))
            nodes += [("MatMul", [f"c{own}", last], f"d{own}", {}), ("Add", [f"d{own}", last], name, {})]
        last = name
    return nodes, last


@pytest.mark.parametrize("seed", range(12))
def test_drawn_chains(seed):
    random = np.random.default_rng(seed)
    held = {"first": np.array([-int(random.integers(1, 4))]), "end": np.array([2**31 - 1]), "axis": np.array([1])}
    nodes, last = _steps(random, "x", held, int(random.integers(1, 5)))
    nodes.append(("Slice", [last, "first", "end", "axis"], "z", {}))
    if random.random() < 0.3:  # another operator reads all positions
        nodes += [("ReduceMean", [last], "m", {"axes": [1], "keepdims": 1}), ("Add", ["z", "m"], "z1", {})]
    nodes.append(("Neg", [nodes[-1][2]], "y", {}))
    proto = model(nodes, [1, N, WIDTH], held)
    check(proto, compiled(proto, "4..9"), (4, 5, 7, 8, 9))


def _sizes(proto, length):
    """The operators of a model of one length and the shapes of their results."""
    mod = from_onnx(proto, dims(proto, length))
    mod = with_early_slices(mod, early_slices(mod))
    tensors = [each for each in bindings_of(mod) if hasattr(each.var.ty, "shape")]
    return [(operator_of(each.value), tuple(map(int, each.var.ty.shape))) for each in tensors]


def _chain(**more):
    held = {"w": weights(4, 6), "b": weights(6), "first": np.array([-1]), "end": np.array([99]), "axis": np.array([1])}
    nodes = [
        ("MatMul", ["x", "w"], "a", {}),
        ("Add", ["a", "b"], "c", {}),
        ("Slice", ["c", "first", "end", "axis"], "z", {}),
        ("Tanh", ["z"], "y", {}),
    ]
    return model([*nodes[:3], *more.get("nodes", ()), nodes[3]], [1, N, 4], held | more.get("held", {}))


def test_the_slice_is_in_front_of_the_product():
    found = [each for each in _sizes(_chain(), 7) if each[0] in ("strided_slice", "matmul", "add")]
    assert found == [("strided_slice", (1, 1, 4)), ("matmul", (1, 1, 6)), ("add", (1, 1, 6))]


def test_what_another_operator_reads_as_a_whole_stays():
    proto = _chain()
    proto.graph.output.extend([type(proto.graph.output[0])(name="c")])
    proto.graph.output[1].type.tensor_type.elem_type = 1
    found = dict(_sizes(proto, 7))
    assert found["matmul"] == (1, 7, 6) and found["strided_slice"] == (1, 1, 6)


def _two_layers(other=()):
    """Two attentions that read one mask, and the last position of the second."""
    held = {"first": np.array([-1]), "end": np.array([99]), "axis": np.array([1])}
    nodes, last = list(_causal(held)), "x"
    for number in range(2):
        a, b, c, d, e, f = (f"{letter}{number}" for letter in "abcdef")
        nodes += [("Transpose", [last], a, {"perm": [0, 2, 1]}), ("MatMul", [last, a], b, {})]
        nodes += [("Add", [b, "bias"], c, {}), ("Softmax", [c], d, {"axis": -1})]
        nodes += [("MatMul", [d, last], e, {}), ("Add", [e, last], f, {})]
        last = f
    nodes += [*other, ("Slice", [last, "first", "end", "axis"], "z", {}), ("Neg", ["z"], "y", {})]
    return model(nodes, [1, N, WIDTH], held)


def test_a_mask_is_computed_once_more_for_the_last_position():
    found = _sizes(_two_layers(), 7)
    assert [shape for name, shape in found if name == "where"] == [(1, 7, 7), (1, 1, 7)]
    assert [shape for name, shape in found if name == "logical_and"] == [(1, 7, 7), (1, 1, 7)]
    assert [shape for name, shape in found if name == "add"] == [(1, 7, 7), (1, 7, WIDTH), (1, 1, 7), (1, 1, WIDTH)]
    check(_two_layers(), compiled(_two_layers(), "5..9"), (5, 6, 7, 8, 9))


def test_a_mask_of_products_is_read_where_it_is():
    """What all positions are computed for by a product is not computed again."""
    proto = _two_layers()
    scores = {"bias": "seen_bias"}
    for node in proto.graph.node:
        node.output[:] = [scores.get(each, each) for each in node.output]
    at = next(place for place, node in enumerate(proto.graph.node) if node.output[0] == "seen_bias")
    more = helper.make_node("MatMul", ["x", "keys_of_x"], ["products"])
    turned = helper.make_node("Transpose", ["x"], ["keys_of_x"], perm=[0, 2, 1])
    joined = helper.make_node("Add", ["seen_bias", "products"], ["bias"])
    for place, node in enumerate((turned, more, joined)):
        proto.graph.node.insert(at + 1 + place, node)
    found = _sizes(proto, 7)
    assert [shape for name, shape in found if name == "where"] == [(1, 7, 7)]
    check(proto, compiled(proto, "8..9"), (8, 9))


@pytest.mark.parametrize("first", [0, 1])
def test_a_slice_that_is_no_end_stays(first):
    proto = _chain(held={"first": np.array([first]), "end": np.array([first + 2])})
    mod = from_onnx(proto, dims(proto, 7))
    assert with_early_slices(mod, early_slices(mod))[MAIN].same_as(mod[MAIN])


def test_a_capacity_of_which_the_slice_reads_all_and_the_beginning_that_another_one_reads():
    proto = _chain(held={"first": np.array([-4]), "end": np.array([99])})
    found = compiled(proto, "4..9")
    assert [each["items"] for each in found.open[0]["tiles"]] == [4, 8, 9]
    check(proto, found, (4, 5, 8, 9))
    proto = _chain(held={"first": np.array([0]), "end": np.array([4])})
    found = compiled(proto, "4..9")
    assert [each["items"] for each in found.open[0]["tiles"]] == [4, 8, 9]
    check(proto, found, (4, 5, 8, 9))


def test_the_capacity_of_one_position():
    found = compiled(_chain(), "1..5")
    assert [each["items"] for each in found.open[0]["tiles"]] == [1, 2, 4, 5]
    check(_chain(), found, (1, 2, 3, 5))
