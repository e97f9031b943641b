#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes networks of transformers that took long to compile as ONNX files, with random weights: nothing is downloaded.

python benchmarks/compile_export.py canine canine.onnx
python benchmarks/compile_nodes.py --file canine.onnx       # and how long reading it and its passes take

Needs torch, transformers and onnxscript. Sizes are those of the real networks where no comment says otherwise.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from smartmem_tvm.tools.timm_networks import import_timm

OPSET = 18


@dataclass(frozen=True)
class Written:
    """A network: its class, what differs from the default of its configuration, and how many ids it reads.

    Attributes
    ----------
    dynamo : bool
        Which of torch's exporters writes it. The older one writes shapes of CANINE's that do not fit each other.
    """

    make: str
    settings: dict
    length: int
    dynamo: bool = True


NETWORKS = {
    "canine": Written("CanineModel", {"num_hidden_layers": 3}, 2048),
    "bigbird": Written("BigBirdModel", {"num_hidden_layers": 2, "attention_type": "block_sparse"}, 1024),
    # A step for each id, written out by the older exporter, with the arithmetic of its indices: 4,725 nodes.
    "rwkv": Written(
        "RwkvModel",
        {"vocab_size": 500, "hidden_size": 64, "attention_hidden_size": 64, "num_hidden_layers": 2, "use_cache": False},
        32,
        dynamo=False,
    ),
}


class First(torch.nn.Module):
    """A network that returns its first result alone."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Call it with ids alone."""
        return self.module(ids, return_dict=False)[0]


def export(network: Written, path: Path) -> None:
    """Write the file."""
    import_timm()  # before transformers, which wants torchvision too
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, network.make)
    module = First(kind(kind.config_class(**network.settings))).eval()
    ids = torch.randint(1, 200, (1, network.length))
    ways = {"dynamo": True, "external_data": False} if network.dynamo else {"dynamo": False}
    with torch.no_grad():
        torch.onnx.export(module, (ids,), str(path), input_names=["ids"], opset_version=OPSET, **ways)


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    export(NETWORKS[args.network], args.path)


if __name__ == "__main__":
    main()
