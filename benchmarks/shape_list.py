# SPDX-License-Identifier: Apache-2.0
"""The matmuls and convolutions of the models that `shapes.py` measures, each as an ONNX model of one operator."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Matmul:
    """``left (batch, rows, depth) @ right (batch, depth, columns)``; without a batch the right operand is a weight.

    Attributes
    ----------
    models : str
        Where it comes from.
    transposed : bool
        The right operand arrives as (batch, columns, depth), as the keys of attention do.
    """

    models: str
    rows: int
    depth: int
    columns: int
    batch: int = 1
    transposed: bool = False

    @property
    def name(self) -> str:
        """As shown."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.rows}x{self.depth}x{self.columns}" + (", right transposed" if self.transposed else "")

    @property
    def flops(self) -> int:
        """Floating-point operations, two per multiplication."""
        return 2 * self.batch * self.rows * self.depth * self.columns

    def arrays(self) -> dict[str, np.ndarray]:
        """Its operands, from a fixed seed."""
        right = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        batch = (self.batch,) if self.batch > 1 else ()
        return _draw({"left": (*batch, self.rows, self.depth), "right": (*batch, *right)}, self.depth)

    def model(self):
        """The operator as an ONNX model."""
        nodes, right = [], "right"
        if self.transposed:
            nodes.append(helper.make_node("Transpose", ["right"], ["columns"], perm=[0, 2, 1]))
            right = "columns"
        nodes.append(helper.make_node("MatMul", ["left", right], ["result"]))
        return _model(nodes, self.arrays(), () if self.batch > 1 else ("right",))


@dataclass(frozen=True)
class Convolution:
    """A convolution of a square picture, channels first, batch 1, padded to keep its size where the stride is 1.

    Attributes
    ----------
    models : str
        Where it comes from.
    what : str
        What is special about it.
    """

    models: str
    what: str
    channels: int
    pixels: int
    filters: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    padding: int = 0
    transposed: bool = False

    @property
    def name(self) -> str:
        """As shown."""
        return f"{self.what}: {self.channels}x{self.pixels}x{self.pixels} to {self.filters}"

    @property
    def flops(self) -> int:
        """Floating-point operations, two per multiplication; those of the padding count."""
        reach = self.dilation * (self.kernel - 1) + 1
        steps = self.pixels if self.transposed else (self.pixels + 2 * self.padding - reach) // self.stride + 1
        return 2 * steps**2 * self.filters * self.channels // self.groups * self.kernel**2

    def arrays(self) -> dict[str, np.ndarray]:
        """Picture and weights, from a fixed seed."""
        outer, inner = (self.channels, self.filters) if self.transposed else (self.filters, self.channels)
        window = (self.kernel, self.kernel)
        shapes = {
            "left": (1, self.channels, self.pixels, self.pixels),
            "right": (outer, inner // self.groups, *window),
        }
        return _draw(shapes, self.channels // self.groups * self.kernel**2)

    def model(self):
        """The operator as an ONNX model."""
        attributes = {
            "kernel_shape": [self.kernel] * 2,
            "strides": [self.stride] * 2,
            "dilations": [self.dilation] * 2,
            "pads": [self.padding] * 4,
            "group": self.groups,
        }
        node = "ConvTranspose" if self.transposed else "Conv"
        return _model([helper.make_node(node, ["left", "right"], ["result"], **attributes)], self.arrays(), ("right",))


def _draw(shapes: dict[str, tuple[int, ...]], depth: int) -> dict[str, np.ndarray]:
    """Values whose products have sums near one."""
    draw = np.random.default_rng(prod(map(prod, shapes.values())))
    return {name: draw.standard_normal(shape, "float32") / np.float32(depth**0.25) for name, shape in shapes.items()}


def _model(nodes: list, arrays: dict[str, np.ndarray], weights: tuple[str, ...]):
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in arrays.items()
        if name not in weights
    ]
    output = helper.make_tensor_value_info("result", TensorProto.FLOAT, [None] * arrays["left"].ndim)
    constants = [numpy_helper.from_array(arrays[name], name) for name in weights]
    graph = helper.make_graph(nodes, "one operator", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


MATMULS = (
    Matmul("Swin-T", 3136, 96, 288),
    Matmul("Swin-T, ConvNeXt-T", 3136, 96, 384),
    Matmul("Swin-T, ConvNeXt-T", 3136, 384, 96),
    Matmul("Swin-T, ConvNeXt-T", 196, 384, 1536),
    Matmul("Swin-T, ConvNeXt-T", 196, 1536, 384),
    Matmul("ViT-S/16, AutoFormer-S", 197, 384, 1152),
    Matmul("ViT-B/16", 197, 768, 3072),
    Matmul("ViT-B/16", 197, 3072, 768),
    Matmul("BERT-base", 128, 768, 768),
    Matmul("Pythia-1B", 128, 2048, 2048),
    Matmul("Swin-T", 49, 32, 49, batch=192, transposed=True),
    Matmul("ViT-B/16", 197, 197, 64, batch=12),
)
CONVOLUTIONS = (
    Convolution("Swin-T, ConvNeXt-T", "4x4, stride 4", 3, 224, 96, 4, stride=4),
    Convolution("ViT-S/16", "16x16, stride 16", 3, 224, 384, 16, stride=16),
    Convolution("ResNeXt-50", "7x7, stride 2", 3, 224, 64, 7, stride=2, padding=3),
    Convolution("ResNeXt-50", "1x1", 128, 56, 256, 1),
    Convolution("ResNeXt-50", "1x1", 512, 14, 1024, 1),
    Convolution("YOLOv8n", "3x3", 64, 40, 64, 3, padding=1),
    Convolution("SD-UNet", "3x3", 1280, 8, 1280, 3, padding=1),
    Convolution("ResNeXt-50", "3x3, 32 groups", 128, 56, 128, 3, groups=32, padding=1),
    Convolution("ResNeXt-50", "3x3, 32 groups, stride 2", 512, 28, 512, 3, groups=32, stride=2, padding=1),
    Convolution("ConvNeXt-T", "7x7, depthwise", 96, 56, 96, 7, groups=96, padding=3),
    Convolution("segmentation", "3x3, dilated by 2", 256, 28, 256, 3, dilation=2, padding=2),
    Convolution("decoders", "2x2, stride 2, transposed", 256, 28, 128, 2, stride=2, transposed=True),
)
SHAPES = {each.name: each for each in (*MATMULS, *CONVOLUTIONS)}
