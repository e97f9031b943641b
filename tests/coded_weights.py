# SPDX-License-Identifier: Apache-2.0
"""Products with weights that ONNX files store as integers: random models, and the weights in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {
    (4, True): TensorProto.INT4,
    (4, False): TensorProto.UINT4,
    (8, True): TensorProto.INT8,
    (8, False): TensorProto.UINT8,
}


@dataclass(frozen=True)
class Drawn:
    """A model with input ``x`` and result ``y``, and what it multiplies by: ``x @ weight + bias``, or turned round."""

    model: onnx.ModelProto
    shape: tuple[int, ...]
    weight: np.ndarray
    bias: np.ndarray | float = 0.0
    left: bool = False

    def exact(self, x: np.ndarray) -> np.ndarray:
        """Return the result in float64."""
        x = x.astype("float64")
        return (self.weight @ x if self.left else x @ self.weight) + self.bias


def _model(nodes: list, shape: tuple, result: tuple, constants: list) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, 1, each) for name, each in (("x", shape), ("y", result))]
    graph = helper.make_graph(nodes, "coded", values[:1], values[1:], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def nbits(
    random: np.random.Generator,
    rows: int,
    depth: int,
    columns: int,
    group: int,
    bits: int = 4,
    zeros: bool = False,
    bias: bool = False,
) -> Drawn:
    """MatMulNBits."""
    blocks = -(-depth // group)
    codes = random.integers(0, 2**bits, (columns, blocks * group)).astype("uint8")
    points = random.integers(0, 2**bits, (columns, blocks)).astype("uint8")
    scales = (random.random((columns, blocks)) * 0.02 + 0.001).astype("float32")
    added = random.standard_normal(columns).astype("float32")

    def packed(array: np.ndarray) -> np.ndarray:
        array = np.pad(array, ((0, 0), (0, array.shape[1] % 2))) if bits == 4 else array
        return array[:, ::2] | array[:, 1::2] << 4 if bits == 4 else array

    constants = {"b": packed(codes).reshape(columns, blocks, -1), "s": scales}
    constants |= {"z": packed(points).reshape(-1)} if zeros else {}
    constants |= {"c": added} if bias else {}
    names = ["x", "b", "s", "z" if zeros else "", "", "c" if bias else ""]
    options = {"K": depth, "N": columns, "bits": bits, "block_size": group}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **options)
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    zero = points.astype("float64") if zeros else np.full((columns, blocks), 2 ** (bits - 1))
    weight = (codes.reshape(columns, blocks, group) - zero[:, :, None]) * scales[:, :, None].astype("float64")
    weight = weight.reshape(columns, -1)[:, :depth].T
    return Drawn(_model([node], (rows, depth), (rows, columns), stored), (rows, depth), weight, added if bias else 0.0)


def dequantized(
    random: np.random.Generator,
    rows: int,
    depth: int,
    columns: int,
    group: int | str,
    bits: int = 4,
    signed: bool = True,
    zeros: bool = False,
    left: bool = False,
    turned: bool = False,
) -> Drawn:
    """DequantizeLinear, perhaps a Transpose, and a MatMul with the weight on one side.

    Parameters
    ----------
    group : int or str
        Numbers of a block along the depth, or ``tensor`` or ``axis`` (a scale for each column).
    """
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    along = int(left != turned)
    shape = (columns, depth) if along else (depth, columns)
    codes, sizes, options = random.integers(low, high, shape), list(shape), {}
    if group == "tensor":
        sizes = []
    elif group == "axis":
        sizes, options = [columns], {"axis": 1 - along}
    else:
        sizes[along], options = -(-depth // group), {"axis": along, "block_size": group}
    scales, points = (random.random(sizes) * 0.02 + 0.001).astype("float32"), random.integers(low, high, sizes)

    def whole(array: np.ndarray) -> np.ndarray:
        if group == "tensor":
            return array
        if group == "axis":
            return np.expand_dims(array, along)
        return np.repeat(array, group, along).take(range(depth), along)

    weight = (codes - (whole(points) if zeros else 0)) * whole(scales).astype("float64")
    kind = _TYPES[bits, signed]
    stored = [helper.make_tensor("q", kind, shape, codes.ravel().tolist()), numpy_helper.from_array(scales, "s")]
    stored += [helper.make_tensor("z", kind, sizes, points.ravel().tolist())] if zeros else []
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", *(["z"] if zeros else [])], ["w"], **options)]
    nodes += [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if turned else []
    name, weight = ("t", weight.T) if turned else ("w", weight)
    nodes.append(helper.make_node("MatMul", [name, "x"] if left else ["x", name], ["y"]))
    shape, result = ((depth, rows), (columns, rows)) if left else ((rows, depth), (rows, columns))
    return Drawn(_model(nodes, shape, result, stored), shape, weight, left=left)
