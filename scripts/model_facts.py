#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the facts table of models/README.md: parameters, multiplications and nodes, beside the paper's.

Everything is read off the light files: parameters from the shapes of the weights, multiply-accumulate
operations (MACs) from the shapes that ONNX infers. Needs onnx only, no torch and no weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import onnx

MODELS = Path(__file__).resolve().parent.parent / "models"


@dataclass(frozen=True)
class Paper:
    """One row of SmartMem's Table 7: parameters in millions, MACs in billions, ONNX nodes; why ours differ."""

    network: str
    params: float
    macs: float
    nodes: int
    remark: str = ""


# fmt: off
PAPER = {
    "autoformer_s":    Paper("AutoFormer-S",    31.2,    4.7,  546, "published: 22.9 M, 5.1 G"),
    "biformer_s":      Paper("BiFormer-S",      25.5,    4.5, 2042),
    "crossformer_s":   Paper("CrossFormer-S",   31.0,    5.0,  505),
    "cswin_s":         Paper("CSWin-S",         34.7,    6.9, 3863),
    "efficientvit_b3": Paper("EfficientViT-B3", 51.0,    5.2,  536),
    "flatten_cswin_s": Paper("FLatten",         37.3,    7.2, 2016, "its CSWin-S form; published: 35 M, 6.9 G"),
    "smt_s":           Paper("SMT-S",           22.5,    4.9, 1406),
    "swin_t":          Paper("Swin-T",          28.9,    4.6,  765),
    "vit_b16":         Paper("ViT",            102.8,   21.0,  444, "published: 86.6 M, 16.9 G with no attention"),
    "conformer":       Paper("Conformer",       10.0,   12.0,  665, "package `conformer`: dim 512, depth 12"),
    "sd_text_encoder": Paper("SD-TextEncoder", 123.0,    6.7,  674),
    "sd_unet":         Paper("SD-UNet",        860.0,   91.0, 1962),
    "sd_vae_decoder":  Paper("SD-VAEDecoder",   50.0,  312.0,  287),
    "pythia_1b":       Paper("Pythia-1B",     1121.0,  119.0, 1853, "published: 1012 M"),
    "convnext_t":      Paper("ConvNeXt-T",      28.6,    4.5,  292),
    "regnet":          Paper("RegNet",          19.4,    3.2,  282),
    "resnext50":       Paper("ResNeXt-50",      25.0,    4.3,  122),
    "yolov8n":         Paper("YOLOv8n",          3.2,    4.4,  233),
}
# fmt: on


@dataclass(frozen=True)
class Facts:
    """What a light file says of its network: parameters, MACs, ONNX nodes."""

    params: int
    macs: int
    nodes: int


def facts(path: Path) -> Facts:
    """Count the facts of one light file."""
    model = onnx.load(path)
    recipes = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "smartmem.weights"))
    params = sum(math.prod(t.dims) for t in model.graph.initializer if t.name in recipes)
    return Facts(params, count_macs(model), len(model.graph.node))


def count_macs(model: onnx.ModelProto) -> int:
    """Return the multiply-accumulate operations of the convolutions and matrix products, for static shapes."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return sum(COUNTED[node.op_type](node, shapes) for node in graph.node if node.op_type in COUNTED)


Shapes = dict[str, list[int]]


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Return the attributes of a node as Python values."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def convolution(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Each output has one product per weight of its channel; transposed, each input has."""
    pixels = shapes[node.input[0] if node.op_type == "ConvTranspose" else node.output[0]]
    return math.prod(pixels) * math.prod(shapes[node.input[1]][1:])


def product(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Each output is a sum over the first operand's last axis, or its first if that is transposed."""
    axis = 0 if attributes(node).get("transA") else -1
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][axis]


def einsum(node: onnx.NodeProto, shapes: Shapes) -> int:
    """One product of all operands for each combination of indices."""
    operands = attributes(node)["equation"].decode().replace(" ", "").partition("->")[0].split(",")
    sizes = {}
    for letters, name in zip(operands, node.input, strict=True):
        sizes |= zip(letters, shapes[name], strict=True)
    return math.prod(sizes.values()) * (len(operands) - 1)


COUNTED = {
    "Conv": convolution,
    "ConvTranspose": convolution,
    "MatMul": product,
    "Gemm": product,
    "Einsum": einsum,
}


def row(file: str, paper: Paper) -> str:
    """Return one row of the table."""
    ours = facts(MODELS / f"{file}.onnx")
    return (
        f"| {paper.network} | `{file}.onnx` | {ours.params / 1e6:.1f} | {paper.params:g} | {ours.macs / 1e9:.1f} "
        f"| {paper.macs:g} | {ours.nodes} | {paper.nodes} | {paper.remark} |"
    )


def table() -> str:
    """Return the table, in Markdown."""
    head = (
        "| network | file | params, M | paper's | GMACs | paper's | ONNX nodes | paper's | why they differ |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    return "\n".join([*head, *(row(file, paper) for file, paper in PAPER.items())])


if __name__ == "__main__":
    print(table())
