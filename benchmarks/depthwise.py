#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure depthwise convolutions, each with the activation of its network, beside ONNX Runtime on one thread.

python benchmarks/depthwise.py            # prints a table: the least processor time of runs in turns
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.deploy.build import compile
from smartmem_tvm.frontend import from_onnx, onnxruntime_session, read_model
from smartmem_tvm.target import host_target
from smartmem_tvm.tools.bench.turns import inference
from smartmem_tvm.tune.host import set_threads

ROUNDS, BLOCK = 12, 0.03  # blocks of runs of each system, and seconds of a block

_GELU = [("Div", "y", "root", "a"), ("Erf", "a", "b"), ("Add", "b", "one", "c"), ("Mul", "y", "c", "d")]
ACTIVATIONS = {
    "-": [],
    "ReLU6": [("Clip", "y", "zero", "six", "z")],
    "SiLU": [("Sigmoid", "y", "a"), ("Mul", "y", "a", "z")],
    "GELU": [*_GELU, ("Mul", "d", "half", "z")],
}
CONSTANTS = {"zero": 0.0, "six": 6.0, "root": 2**0.5, "one": 1.0, "half": 0.5}


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution of a square picture that is padded to keep its size, batch 1."""

    models: str
    channels: int
    pixels: int
    size: int
    stride: int
    activation: str
    tokens: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations of the convolution, two per multiplication."""
        return 2 * self.channels * self.size**2 * (-(-self.pixels // self.stride)) ** 2

    def model(self):
        """As an ONNX model whose input is ``x`` and whose output is the last name of its nodes."""
        draw, c, k = np.random.default_rng(0), self.channels, self.size
        arrays = {"w": draw.standard_normal((c, 1, k, k)) / k, "bias": draw.standard_normal(c), **CONSTANTS}
        window = {"kernel_shape": [k, k], "strides": [self.stride] * 2, "pads": [k // 2] * 4, "group": c}
        nodes, picture = [], "x"
        if self.tokens:
            nodes = [_node("Transpose", "x", "t", perm=[0, 2, 1]), _node("Reshape", "t", "lines", "picture")]
            picture = "picture"
        nodes.append(_node("Conv", picture, "w", "bias", "sum" if self.tokens else "y", **window))
        if self.tokens:
            nodes += [_node("Reshape", "sum", "flat", "u"), _node("Transpose", "u", "y", perm=[0, 2, 1])]
        nodes += [_node(*each) for each in ACTIVATIONS[self.activation]]
        constants = [numpy_helper.from_array(np.asarray(array, "float32"), name) for name, array in arrays.items()]
        shapes = {"lines": [1, c, self.pixels, self.pixels], "flat": [1, c, -1]}
        constants += [numpy_helper.from_array(np.array(each, "int64"), name) for name, each in shapes.items()]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [None] * len(self.shape))
        graph = helper.make_graph(nodes, "one operator", [given], [result], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    @property
    def shape(self) -> list[int]:
        """Of the input."""
        side = self.pixels
        return [1, side**2, self.channels] if self.tokens else [1, self.channels, side, side]


def _node(kind: str, *names: str, **attributes):
    return helper.make_node(kind, names[:-1], names[-1:], **attributes)


SHAPES = (
    Depthwise("PVTv2-B1", 512, 56, 3, 1, "GELU", tokens=True),
    Depthwise("PVTv2-B1", 1280, 14, 3, 1, "GELU", tokens=True),
    Depthwise("SegFormer-B0", 128, 128, 3, 1, "GELU", tokens=True),
    Depthwise("-", 256, 28, 7, 1, "-", tokens=True),
    Depthwise("MobileNetV2", 144, 56, 3, 1, "ReLU6"),
    Depthwise("MobileNetV2", 144, 56, 3, 2, "ReLU6"),
    Depthwise("MobileNetV2", 576, 14, 3, 2, "ReLU6"),
    Depthwise("MobileNetV2", 960, 7, 3, 1, "ReLU6"),
    Depthwise("EfficientNet-B0", 144, 56, 5, 2, "SiLU"),
    Depthwise("EfficientNet-B0", 1152, 7, 5, 1, "SiLU"),
    Depthwise("ConvNeXt-T", 96, 56, 7, 1, "-"),
    Depthwise("ConvNeXt-T", 768, 7, 7, 1, "-"),
)


def measure(shape: Depthwise, target: tvm.target.Target) -> list[float]:
    """Seconds of processor time of one run: ours, and ONNX Runtime's."""
    x = np.random.default_rng(1).standard_normal(shape.shape, "float32")
    model = shape.model()
    compiled, session = compile(from_onnx(model), target), onnxruntime_session(read_model(model), 1)
    theirs = session.run(None, {"x": x})[0]
    assert np.abs(compiled.run(x)[0] - theirs).max() <= 1e-5 * np.abs(theirs).max()
    runs = [inference(compiled.vm, [x]), lambda: session.run(None, {"x": x})]
    return [min(each) for each in zip(*([_seconds(run) for run in runs] for _ in range(ROUNDS)), strict=True)]


def _seconds(run: Callable[[], object]) -> float:
    start, count = time.process_time(), 0
    while time.process_time() - start < BLOCK:
        run()
        count += 1
    return (time.process_time() - start) / count


def main() -> None:
    """Measure all shapes and print a table."""
    set_threads(1)
    target = tvm.target.Target({**host_target().export(), "num-cores": 1})
    print(
        "| channels x lines x columns | window | stride | activation | from | GFLOP/s: **ours** / ONNX Runtime | time |"
    )
    print("|---|---|---|---|---|---|---|")
    for each in SHAPES:
        ours, theirs = measure(each, target)
        size = f"{each.pixels} x {each.pixels}"
        size = f"{size} x {each.channels}, tokens" if each.tokens else f"{each.channels} x {size}"
        rates = f"**{each.flops / ours / 1e9:.1f}** / {each.flops / theirs / 1e9:.1f}"
        window = f"{each.size} x {each.size} | {each.stride} | {each.activation} | {each.models}"
        print(f"| {size} | {window} | {rates} | {ours / theirs:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
