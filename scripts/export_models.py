#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the light ONNX files in models/ again from torch and the packages of the extra ``[models]``.

No trained weights are needed: every parameter is drawn at random with statistics that keep
activations of order one, so that the output of each network depends on its input. Which constants
are weights is found out, not guessed: each network is exported twice with different draws, and a
float initializer whose values differ between the two is a weight. All others (attention masks,
position indices, shapes, scale factors) are stored as they are.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_model

ROOT = Path(__file__).resolve().parent.parent
# A bare package in place of smartmem_tvm/__init__.py, which needs TVM: exporting needs torch only, and the
# two are best kept in different environments.
package = types.ModuleType("smartmem_tvm")
package.__path__ = [str(ROOT / "python" / "smartmem_tvm")]
sys.modules["smartmem_tvm"] = package

from models import packages  # noqa: E402
from models.network import Network, image_network, local_network  # noqa: E402
from models.weights import (  # noqa: E402
    EFFICIENTVIT,
    MOBILENETV2,
    MOBILENETV2_CONVOLUTION,
    REGNET,
    RELU_CONVOLUTION,
    RESNET152,
    RESNET152_CONVOLUTION,
    randomise,
)
from smartmem_tvm.light import DTYPES, Recipe, strip  # noqa: E402
from smartmem_tvm.tools.timm_networks import NAMES  # noqa: E402

# A weight with fewer values than this costs less than its recipe.
SMALLEST = 64
SEEDS = (1, 2)

NETWORKS = {
    "swin_t": image_network(NAMES["swin_t"]),
    "vit_b16": image_network(NAMES["vit_b16"]),
    "convnext_t": image_network(NAMES["convnext_t"]),
    "bert_base": packages.bert("eager", ("input_ids",)),
    "resnext50": image_network(NAMES["resnext50"], convolution=RELU_CONVOLUTION),
    "autoformer_s": local_network("autoformer_s"),
    # Each of thirty blocks adds a convolution of x to x. This standard deviation keeps the sum of order one, and
    # no region so near to being picked that rounding decides, for the inputs that the tests draw.
    "biformer_s": local_network("biformer_s", statistics=((r"position\.weight$", 0.0, 0.089),)),
    "crossformer_s": local_network("crossformer_s"),
    "cswin_s": local_network("cswin_s"),
    "flatten_cswin_s": local_network("flatten_cswin_s"),
    "smt_s": local_network("smt_s"),
    "regnet": image_network(NAMES["regnet"], convolution=RELU_CONVOLUTION, statistics=REGNET),
    "efficientvit_b3": image_network(NAMES["efficientvit_b3"], 256, convolution=(0.0, 1.5), statistics=EFFICIENTVIT),
    "yolov8n": packages.yolov8n(),
    "conformer": packages.conformer(),
    "sd_text_encoder": packages.sd_text_encoder(),
    "sd_vae_decoder": packages.sd_vae_decoder(),
    "sd_unet": packages.sd_unet(),
    "pythia_1b": packages.gpt_neox(2048, layers=16, heads=8),
    "extra/vit_s16": image_network(NAMES["vit_s16"]),
    # Swin-T with two and four times the blocks, to see how compile time grows with depth.
    "extra/swin_t_2x": image_network(NAMES["swin_t"], depths=(4, 4, 12, 4)),
    "extra/swin_t_4x": image_network(NAMES["swin_t"], depths=(8, 8, 24, 8)),
    # The networks of FluidML's tables that are not among the eighteen.
    "extra/convbert": packages.convbert(),
    "extra/gpt_neox_160m": packages.gpt_neox(768, layers=12, heads=12),
    "extra/ibert": packages.ibert(),
    "extra/vgg19": image_network(NAMES["vgg19"], convolution=RELU_CONVOLUTION),
    # Networks of other papers' tables.
    "extra/gpt2": packages.gpt2(),
    "extra/mobilenetv2": image_network("mobilenetv2_100", convolution=MOBILENETV2_CONVOLUTION, statistics=MOBILENETV2),
    "extra/resnet152": image_network("resnet152", convolution=RESNET152_CONVOLUTION, statistics=RESNET152),
    "extra/squeezenet": packages.squeezenet(),
    "extra/bert_base_masked": packages.bert("sdpa", ("input_ids", "attention_mask", "token_type_ids")),
}
LEGACY = ("swin_t",)


def export(network: Network, seed: int, path: Path, legacy: bool) -> onnx.ModelProto:
    """Export one network with the weights of `seed` to `path`; return its graph, without the big tensors.

    `legacy` means the TorchScript exporter. The tensors lie beside the file: protobuf holds less than 2 GiB.
    """
    module = network.build().eval()
    randomise(module, seed, network.convolution, network.statistics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(network.inputs.values()),
            path,
            input_names=list(network.inputs),
            dynamo=not legacy,
            external_data=True,
            verbose=False,
        )
    return onnx.load(path, load_external_data=False)


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


def find_recipes(first: onnx.ModelProto, second: onnx.ModelProto, folders: Sequence[Path]) -> dict[str, Recipe]:
    """Return a recipe for each weight: an initializer that differs between two draws of one graph.

    One tensor is read at a time, from the folder of its model.
    """
    if list(first.graph.node) != list(second.graph.node):
        raise SystemExit("The exported graph depends on the values of the weights; export with other SEEDS.")
    recipes = {}
    for tensor, other in zip(first.graph.initializer, second.graph.initializer, strict=True):
        if tensor.data_type in DTYPES and math.prod(tensor.dims) >= SMALLEST:
            values, others = (numpy_helper.to_array(t, str(f)) for t, f in zip((tensor, other), folders))
            if not np.array_equal(values, others):
                recipes[tensor.name] = Recipe.of(values, tensor.name)
    return recipes


def make_light(network: Network, legacy: bool) -> onnx.ModelProto:
    """Export one network twice and return its graph without the weights."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(seed) for seed in SEEDS]
        models = []
        for seed, place in zip(SEEDS, folders):
            place.mkdir()
            models.append(export(network, seed, place / "model.onnx", legacy))
            drop_notes(models[-1])
        light = strip(models[0], find_recipes(*models, folders))
        load_external_data_for_model(light, str(folders[0]))
    for tensor in light.graph.initializer:
        tensor.ClearField("data_location")  # the default, now that the rest of the data is in the file
    share_equal_constants(light)
    return light


def make(name: str, legacy: bool, out: Path) -> Path:
    """Write the light file of one network; return its path."""
    light = make_light(NETWORKS[name], legacy)
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
    names = [args.only] if args.only else list(LEGACY if args.legacy else NETWORKS)
    for name in names:
        start = time.perf_counter()
        print(f"{name}: exporting ...", flush=True)
        path = make(name, args.legacy, args.out)
        nodes, size = len(onnx.load(path).graph.node), path.stat().st_size / 1e3
        print(f"{path}: {nodes} nodes, {size:.0f} kB, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
