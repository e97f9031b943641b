#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the light ONNX files in models/ again from torch, timm and transformers (extra ``[models]``).

No trained weights are needed: every parameter is drawn at random with statistics that keep
activations of order one, so that the output of each network depends on its input. Which constants
are weights is found out, not guessed: each network is exported twice with different draws, and a
float initializer whose values differ between the two is a weight. All others (attention masks,
position indices, shapes, scale factors) are stored as they are.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
# A bare package in place of smartmem_tvm/__init__.py, which needs TVM: exporting needs torch only, and the
# two are best kept in different environments.
package = types.ModuleType("smartmem_tvm")
package.__path__ = [str(ROOT / "python" / "smartmem_tvm")]
sys.modules["smartmem_tvm"] = package

from smartmem_tvm.light import DTYPES, Recipe, strip  # noqa: E402

SEQUENCE = 128
# A weight with fewer values than this costs less than its recipe.
SMALLEST = 64
SEEDS = (1, 2)

# Parameter name -> (mean, standard deviation); the first match wins. All other vectors are scales around
# one, matrices and convolutions are scaled by their inputs. Stock initial values make the networks blind:
# - gamma, the layer scale of ConvNeXt, starts at 1e-6 and removes each residual branch from the result;
# - cls_token starts near zero, bn3.weight at zero; ReLU layers forget their input (RELU_CONVOLUTION);
# - word embeddings outweigh those of position and type, which are the same for every text.
STATISTICS = (
    (r"running_mean$", 0.0, 0.1),
    (r"running_var$", 1.0, 0.1),
    (r"gamma$", 0.5, 0.05),
    (r"bn3\.weight$", 1.8, 0.1),
    (r"(word_embeddings\.weight|pos_embed|cls_token|relative_position_bias_table)$", 0.0, 0.3),
    (r"embeddings\.weight$", 0.0, 0.1),
    (r"bias$", 0.0, 0.05),
)
VECTOR = (1.0, 0.1)
# Matrices and convolutions, per number of inputs n: mean * 1/n and standard deviation * 1/sqrt(n).
MATRIX = (0.0, 1.0)
# The outputs of a ReLU have a positive mean, which mean-free weights pass on as a constant that swamps the
# signal in the end. A slightly negative mean of the weights takes out part of it; with all of it gone the
# network would magnify rounding errors beyond what a comparison of two runtimes can bear.
RELU_CONVOLUTION = (-1.5, math.sqrt(2.0))


@dataclass(frozen=True)
class Network:
    """One file in models/: how to build the torch module, how to call it, how to draw its convolutions."""

    build: Callable[[], torch.nn.Module]
    inputs: dict[str, torch.Tensor]
    convolution: tuple[float, float] = MATRIX


def image_network(name: str, convolution: tuple[float, float] = MATRIX, **changes: object) -> Network:
    """Return a timm classifier with its usual 224 x 224 input; `changes` go to its constructor."""

    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, **changes)

    return Network(build, {"x": torch.zeros(1, 3, 224, 224)}, convolution)


def bert_network(attention: str, names: tuple[str, ...]) -> Network:
    """Return BERT-base as an encoder (last hidden state); `names` are its inputs."""

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(attn_implementation=attention), add_pooling_layer=False)

    return Network(build, {name: torch.ones(1, SEQUENCE, dtype=torch.int64) for name in names})


NETWORKS = {
    "swin_t": image_network("swin_tiny_patch4_window7_224"),
    "vit_b16": image_network("vit_base_patch16_224"),
    "convnext_t": image_network("convnext_tiny"),
    "bert_base": bert_network("eager", ("input_ids",)),
    "resnext50": image_network("resnext50_32x4d", convolution=RELU_CONVOLUTION),
    # Swin-T with two and four times the blocks, to see how compile time grows with depth.
    "extra/swin_t_2x": image_network("swin_tiny_patch4_window7_224", depths=(4, 4, 12, 4)),
    "extra/swin_t_4x": image_network("swin_tiny_patch4_window7_224", depths=(8, 8, 24, 8)),
    "extra/bert_base_masked": bert_network("sdpa", ("input_ids", "attention_mask", "token_type_ids")),
}
LEGACY = ("swin_t",)


def declare_missing_operators() -> None:
    """Let timm import a torchvision built for another torch: declare the operators it registers.

    PyPI's torchvision is a CUDA build whose library does not load beside the CPU-only torch; timm
    wants nothing but its Python code.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declare_missing_operators.library = library  # the declarations die with this object


def randomise(module: torch.nn.Module, convolution: tuple[float, float], seed: int) -> None:
    """Overwrite parameters and batch-norm statistics with draws that depend on `seed` only."""
    generator = torch.Generator().manual_seed(seed)
    statistics = [(n, b) for n, b in module.named_buffers() if re.search(r"running_(mean|var)$", n)]
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *statistics]:
            mean, std = statistics_of(name, tensor, convolution)
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)


def statistics_of(name: str, tensor: torch.Tensor, convolution: tuple[float, float]) -> tuple[float, float]:
    """Return (mean, standard deviation) for one parameter."""
    for pattern, mean, std in STATISTICS:
        if re.search(pattern, name):
            return mean, std
    if tensor.ndim == 1:
        return VECTOR
    inputs = math.prod(tensor.shape[1:])
    mean, std = convolution if tensor.ndim == 4 else MATRIX
    return mean / inputs, std / math.sqrt(inputs)


def export(network: Network, seed: int, legacy: bool) -> onnx.ModelProto:
    """Export one network with the weights of `seed`; `legacy` means the TorchScript exporter."""
    module = network.build().eval()
    randomise(module, network.convolution, seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            tuple(network.inputs.values()) if legacy else (),
            path,
            kwargs=None if legacy else network.inputs,
            input_names=list(network.inputs),
            dynamo=not legacy,
            external_data=False,
            verbose=False,
        )
        return onnx.load(path)


def drop_notes(model: onnx.ModelProto) -> None:
    """Remove what the exporter notes for debugging: stack traces (with paths), scopes, inner shapes."""
    del model.graph.value_info[:]
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def share_equal_constants(model: onnx.ModelProto) -> None:
    """Keep one of several equal initializers: every shifted block of Swin brings its own copy of the mask."""
    first: dict[bytes, str] = {}
    names: dict[str, str] = {}
    for tensor in list(model.graph.initializer):
        if not tensor.raw_data:
            continue  # a weight, which is drawn on load
        value = onnx.TensorProto()
        value.CopyFrom(tensor)
        value.ClearField("name")
        names[tensor.name] = first.setdefault(value.SerializeToString(), tensor.name)
        if names[tensor.name] != tensor.name:
            model.graph.initializer.remove(tensor)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


def find_recipes(first: onnx.ModelProto, second: onnx.ModelProto) -> dict[str, Recipe]:
    """Return a recipe for each weight: an initializer that differs between two draws of one graph."""
    if list(first.graph.node) != list(second.graph.node):
        raise SystemExit("The exported graph depends on the values of the weights; export with other SEEDS.")
    recipes = {}
    for tensor, other in zip(first.graph.initializer, second.graph.initializer, strict=True):
        values = numpy_helper.to_array(tensor)
        same = np.array_equal(values, numpy_helper.to_array(other))
        if tensor.data_type in DTYPES and values.size >= SMALLEST and not same:
            recipes[tensor.name] = Recipe.of(values, tensor.name)
    return recipes


def make(name: str, legacy: bool, out: Path) -> Path:
    """Export one network, strip its weights and write the light file; return its path."""
    first, second = (export(NETWORKS[name], seed, legacy) for seed in SEEDS)
    drop_notes(first)
    drop_notes(second)
    light = strip(first, find_recipes(first, second))
    share_equal_constants(light)
    path = out / ("legacy" if legacy else "") / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    onnx.save(light, partial)
    partial.replace(path)
    return path


def main() -> None:
    """Parse the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", choices=NETWORKS, help=f"one of: {', '.join(NETWORKS)}")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "models", help="default: models/")
    parser.add_argument(
        "--legacy",
        action="store_true",
        help="write TorchScript exports to DIR/legacy; their Shape/Gather/Concat chains test the front end",
    )
    args = parser.parse_args()
    declare_missing_operators()
    names = [args.only] if args.only else list(LEGACY if args.legacy else NETWORKS)
    for name in names:
        start = time.perf_counter()
        print(f"{name}: exporting ...", flush=True)
        path = make(name, args.legacy, args.out)
        nodes, size = len(onnx.load(path).graph.node), path.stat().st_size / 1e3
        print(f"{path}: {nodes} nodes, {size:.0f} kB, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
