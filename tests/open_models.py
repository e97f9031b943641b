# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models whose input ``x`` has an open dimension, and ONNX Runtime's results for them."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm
from smartmem_tvm.frontend import from_onnx

N = "n"


def model(nodes, shape, constants=None, dtype=TensorProto.FLOAT) -> onnx.ModelProto:
    """A model of ``(operator, inputs, output, attributes)``; the last output is the model's."""
    made = [helper.make_node(kind, inputs, [output], **attributes) for kind, inputs, output, attributes in nodes]
    given = helper.make_tensor_value_info("x", dtype, shape)
    result = helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, None)
    for each in made:
        if each.op_type == "TopK":
            each.output.append(f"{each.output[0]}_places")
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(made, "open", [given], [result], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def layers(width=16, depth=2) -> onnx.ModelProto:
    """Linear layers with ReLU: x is (n, width)."""
    nodes, constants, last = [], {}, "x"
    for number in range(depth):
        constants |= {f"w{number}": weights(width, width, seed=number), f"b{number}": weights(width, seed=9)}
        nodes.append(("Gemm", [last, f"w{number}", f"b{number}"], f"g{number}", {}))
        nodes.append(("Relu", [f"g{number}"], last := f"r{number}", {}))
    return model(nodes, [N, width], constants)


def encoder(length=5, width=8, heads=2) -> onnx.ModelProto:
    """Attention over ids (n, length) with an embedding, whose heads are a dimension together with the batch."""
    each = width // heads
    nodes = [("Gather", ["table", "x"], "e", {}), ("Add", ["e", "place"], "h", {})]
    for name in "qkv":
        nodes += [
            ("MatMul", ["h", f"w{name}"], f"{name}0", {}),
            ("Reshape", [f"{name}0", "split"], f"{name}1", {}),
            ("Transpose", [f"{name}1"], f"{name}2", {"perm": [0, 2, 1, 3]}),
            ("Reshape", [f"{name}2", "together"], name, {}),
        ]
    nodes += [
        ("Transpose", ["k"], "t", {"perm": [0, 2, 1]}),
        ("MatMul", ["q", "t"], "s", {}),
        ("Softmax", ["s"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "o", {}),
        ("Reshape", ["o", "apart"], "o1", {}),
        ("Transpose", ["o1"], "o2", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["o2", "joined"], "y", {}),
    ]
    shapes = {
        "split": [-1, length, heads, each],
        "together": [-1, length, each],
        "apart": [-1, heads, length, each],
        "joined": [-1, length, width],
    }
    constants = {name: np.array(shape, "int64") for name, shape in shapes.items()}
    constants |= {f"w{name}": weights(width, width, seed=number) for number, name in enumerate("qkv")}
    constants |= {"table": weights(11, width), "place": weights(length, width)}
    return model(nodes, [N, length], constants, TensorProto.INT64)


def sentence(width=8, heads=2, most=64) -> onnx.ModelProto:
    """Attention over ids (1, n), as exporters write it, with places, a norm, and the mean of all positions."""
    each = width // heads
    nodes = [
        ("Gather", ["table", "x"], "e", {}),
        ("Shape", ["x"], "n", {"start": 1, "end": 2}),
        ("Slice", ["places", "zero", "n", "zero"], "place", {}),
        ("Add", ["e", "place"], "h", {}),
    ]
    for name in "qkv":
        nodes += [
            ("MatMul", ["h", f"w{name}"], f"{name}0", {}),
            ("Add", [f"{name}0", "bias"], f"{name}1", {}),
            ("Reshape", [f"{name}1", "split"], f"{name}2", {}),
            ("Transpose", [f"{name}2"], name, {"perm": [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]}),
        ]
    nodes += [
        ("MatMul", ["q", "k"], "s0", {}),
        ("Softmax", ["s0"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "o", {}),
        ("Transpose", ["o"], "o1", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["o1", "joined"], "o2", {}),
        ("Add", ["o2", "h"], "o3", {}),
        ("LayerNormalization", ["o3", "scale", "bias"], "l", {}),
        ("ReduceMean", ["l"], "y", {"axes": [1], "keepdims": 0}),
    ]
    constants = {f"w{name}": weights(width, width, seed=number) for number, name in enumerate("qkv")}
    constants |= {"split": np.array([0, 0, heads, each]), "joined": np.array([0, 0, width]), "zero": np.array([0])}
    constants |= {"table": weights(11, width), "places": weights(most, width, seed=3), "bias": weights(width, seed=4)}
    constants |= {"scale": weights(width, seed=5)}
    return model(nodes, [1, N], constants, TensorProto.INT64)


def drawn_chain(random: np.random.Generator) -> onnx.ModelProto:
    """Operators behind each other, drawn, over x (1, n, width): products, softmax, means, and windows along n."""
    width = int(random.integers(2, 9))
    nodes, constants, last = [], {"one": np.array([1])}, "x"
    for number in range(int(random.integers(2, 6))):
        name = f"t{number}"
        kind = str(random.choice(["MatMul", "Relu", "Softmax", "centre", "pairs", "Conv"]))
        if kind == "MatMul":
            wide = int(random.integers(2, 9))
            constants[f"w{number}"], width = weights(width, wide, seed=number), wide
            nodes.append(("MatMul", [last, f"w{number}"], name, {}))
        elif kind == "Softmax":
            nodes.append(("Softmax", [last], name, {"axis": int(random.integers(1, 3))}))
        elif kind == "centre":
            nodes += [("ReduceMean", [last], f"m{number}", {"axes": [1]}), ("Sub", [last, f"m{number}"], name, {})]
        elif kind == "pairs":
            nodes += [
                ("Transpose", [last], f"a{number}", {"perm": [0, 2, 1]}),
                ("MatMul", [last, f"a{number}"], f"b{number}", {}),
                ("Tanh", [f"b{number}"], f"c{number}", {}),
                ("MatMul", [f"c{number}", last], name, {}),
            ]
        elif kind == "Conv":
            taps = int(random.choice([1, 3, 5]))
            constants[f"k{number}"] = weights(width, width, taps, seed=number) / np.float32(width)
            nodes += [
                ("Transpose", [last], f"a{number}", {"perm": [0, 2, 1]}),
                ("Conv", [f"a{number}", f"k{number}"], f"b{number}", {"pads": [taps // 2] * 2}),
                ("Transpose", [f"b{number}"], name, {"perm": [0, 2, 1]}),
            ]
        else:
            nodes.append(("Relu", [last], name, {}))
        last = name
    nodes.append(("Mul", [last, last], "y", {}))
    proto = model(nodes, [1, N, width], constants)
    first = next((constants[f"w{n}"].shape[0] for n in range(6) if f"w{n}" in constants), width)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = first
    return proto


ROWS = {"w": weights(4, 6)}
APART = {
    "layers": layers(),
    "attention": encoder(),
    "convolution": model(
        [
            ("Conv", ["x", "k"], "c", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
            ("MaxPool", ["c"], "m", {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
            ("GlobalAveragePool", ["m"], "g", {}),
            ("Flatten", ["g"], "y", {}),
        ],
        [N, 3, 7, 5],
        {"k": weights(8, 3, 3, 3)},
    ),
    "items in the middle": model(
        [("MatMul", ["x", "w"], "m", {}), ("Softmax", ["m"], "s", {"axis": 0}), ("Exp", ["s"], "y", {})],
        [5, N, 4],
        ROWS,
    ),
    "items turned to the end": model(
        [("MatMul", ["x", "w"], "m", {}), ("Transpose", ["m"], "t", {"perm": [1, 0]}), ("Tanh", ["t"], "y", {})],
        [N, 4],
        ROWS,
    ),
    "the first of one": model(
        [("ArgMax", ["x"], "a", {"axis": 1}), ("Cast", ["a"], "c", {"to": 1}), ("Sub", ["x", "c"], "y", {})],
        [N, 1, 4],
    ),
    "one row for all, expanded to each": model(
        [
            ("Shape", ["x"], "s", {"start": 0, "end": 1}),
            ("Concat", ["s", "rest"], "e", {"axis": 0}),
            ("Expand", ["row", "e"], "r", {}),
            ("Concat", ["r", "x"], "c", {"axis": 1}),
            ("MatMul", ["c", "w"], "y", {}),
        ],
        [N, 3, 4],
        {"rest": np.array([1, 4]), "row": weights(1, 1, 4), **ROWS},
    ),
}
"""Models whose items do not depend on each other."""
ORDERED = {
    "the largest of each, in order": model(
        [("TopK", ["x", "k"], "t", {"axis": 1}), ("MatMul", ["t", "w"], "y", {})],
        [N, 7, 4],
        {"k": np.array([3]), **ROWS},
    ),
    "a running sum of each": model(
        [("CumSum", ["x", "a"], "t", {"reverse": 1}), ("MatMul", ["t", "w"], "y", {})],
        [N, 7, 4],
        {"a": np.array(1), **ROWS},
    ),
}
"""The same, with sorts and running sums of each item."""


def expected(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """What ONNX Runtime computes."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def drawn(proto: onnx.ModelProto, items: int, seed: int = 0) -> np.ndarray:
    """An input with so many items; ids are below 11."""
    (value,) = proto.graph.input
    shape = [dim.dim_value or items for dim in value.type.tensor_type.shape.dim]
    random = np.random.default_rng(seed)
    if value.type.tensor_type.elem_type == TensorProto.INT64:
        return random.integers(0, 11, shape)
    return random.standard_normal(shape).astype("float32")


def dims(proto: onnx.ModelProto, span: str) -> dict[str, tuple]:
    """The shapes of its input, with the range for the open dimension."""
    (value,) = proto.graph.input
    return {"x": tuple(dim.dim_value or span for dim in value.type.tensor_type.shape.dim)}


def compiled(proto, span):
    """The model with an open dimension."""
    return smartmem_tvm.compile(from_onnx(proto, dims(proto, span)))


def behind(array, capacity, axis):
    """Return the array at a capacity, with NaN, or the last id, behind it."""
    shape = list(array.shape)
    shape[axis] = capacity - shape[axis]
    return np.concatenate([array, np.full(shape, np.nan if array.dtype.kind == "f" else 10, array.dtype)], axis)


def check(proto, found, lengths, step=1):
    """Compare with ONNX Runtime, also with NaN behind the length; a range by a step has lengths of so many elements."""
    axis = next(axis for axis, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim) if dim.dim_param)
    tiles = found.open[0]["tiles"]
    for length in lengths:
        x = drawn(proto, length * step, length)
        wanted = expected(proto, x)
        (got,) = found.run(x)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        if "length" not in found.open[0]:
            continue  # no operator of a drawn model mixes positions: it runs in tiles
        tile = next(each for each in tiles if each["items"] >= length)
        whole = found.run(behind(x, tile["items"] * step, axis), np.array([length]), function=tile["function"])[0]
        kept = tuple(slice(size) for size in got.shape)
        np.testing.assert_array_equal(whole[kept], got)  # also with NaN behind the length
