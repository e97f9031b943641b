# SPDX-License-Identifier: Apache-2.0
"""Writes a network of audit_list.py as an ONNX file, with random weights: nothing is downloaded.

python benchmarks/audit_export.py resnet18 resnet18.onnx

It prints which of torch's exporters wrote the file. It is a process of its own because an exporter may crash or hang,
and keeps much memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any

import onnx
import torch
from audit_list import TABLE, Input, Network, networks

from smartmem_tvm.tools.timm_networks import import_timm

OPSET = 20
WEIGHT = 0.05  # standard deviation of what is added to biases, scales, and layers of zeros, with which many start


def _timm(network: Network) -> torch.nn.Module:
    return import_timm().create_model(network.make, pretrained=False, **network.settings)


def _torchvision(network: Network) -> torch.nn.Module:
    import_timm()  # declares torchvision's operators where its library does not load
    from torchvision.models import get_model, get_model_builder

    asked = signature(get_model_builder(network.make)).parameters
    nothing = {name: None for name in ("weights", "weights_backbone") if name in asked}
    return get_model(network.make, **nothing, **network.settings)


def _transformers(network: Network) -> torch.nn.Module:
    import_timm()  # before transformers, which wants torchvision too
    import transformers

    kind = getattr(transformers, network.make)
    settings = {"use_cache": False, **network.settings}
    return kind(kind.config_class(**settings))


def _diffusers(network: Network) -> torch.nn.Module:
    import_timm()
    import diffusers

    return getattr(diffusers, network.make)(**network.settings)


def _ultralytics(network: Network) -> torch.nn.Module:
    import_timm()
    from ultralytics.nn.modules import C2f, Detect
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel(network.make, verbose=False)
    for module in model.modules():
        if isinstance(module, Detect):  # as its package exports it
            module.export, module.format = True, "onnx"
        if isinstance(module, C2f):
            module.forward = module.forward_split
    return model


MAKERS: dict[str, Callable[[Network], torch.nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "diffusers": _diffusers,
    "ultralytics": _ultralytics,
}
BY_POSITION = ("timm", "torchvision", "ultralytics")


class Called(torch.nn.Module):
    """A network, or a part of it, called with tensors by position, that returns tensors."""

    def __init__(self, module: torch.nn.Module, network: Network):
        super().__init__()
        self.module, self.network = module, network

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call it."""
        network = self.network
        call = attrgetter(network.method)(self.module) if network.method else self.module
        by_position = network.package in BY_POSITION or network.method
        found = call(*given) if by_position else call(**dict(zip(network.inputs, given)))
        chosen: Any = [found[name] for name in network.outputs] if network.outputs else found
        leaves = torch.utils._pytree.tree_leaves(dict(chosen) if hasattr(chosen, "items") else chosen)
        return tuple(each for each in leaves if isinstance(each, torch.Tensor))


def made(network: Network, batch: int = 1) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The network with random weights, and what it is called with, so many times over along the first dimension."""
    torch.manual_seed(0)
    module = MAKERS[network.package](network).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2 or not parameter.any():
                parameter.add_(WEIGHT * torch.randn_like(parameter))
    return Called(module, network), _drawn(network, batch)


def _drawn(network: Network, batch: int) -> tuple[torch.Tensor, ...]:
    given = (_random(each) for each in network.inputs.values())
    return tuple(each.repeat(batch, *[1] * (each.ndim - 1)) for each in given)


def _random(given: Input) -> torch.Tensor:
    return torch.randint(given.limit, given.shape) if given.dtype == "int64" else torch.randn(given.shape)


def export(network: Network, path: Path, batch: int = 1) -> str:
    """Write the file; which of torch's exporters did.

    Raises
    ------
    SystemExit
        With what each of them says, if none can.
    """
    module, given = made(network, batch)
    names, refused = list(network.inputs), []
    common = {"input_names": names, "opset_version": OPSET, "verbose": False}
    ways = {
        "TorchScript": lambda: torch.onnx.export(module, given, path, dynamo=False, **common),
        "dynamo": lambda: torch.onnx.export(module, given, path, dynamo=True, external_data=False, **common),
    }
    with torch.no_grad():
        # A wrong line of the table fails here, and not in an exporter.
        if all(map(torch.equal, module(*given), module(*_drawn(network, batch)))):
            raise SystemExit("Its results do not depend on its inputs: nothing could be compared.")
        for exporter, write in ways.items():
            try:
                write()
                onnx.checker.check_model(path, full_check=True)  # some write shapes that do not fit
                return exporter
            except Exception as error:  # of many kinds
                refused.append(f"{exporter}: {' '.join(str(error).split())[:150]}")
    raise SystemExit("; ".join(refused))


def main() -> None:
    """Export the network that the command names."""
    parser = argparse.ArgumentParser(description="Write a network of the audit as an ONNX file, with random weights.")
    parser.add_argument("network", metavar="NETWORK")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    print(export(networks(args.table)[args.network], args.file))


if __name__ == "__main__":
    sys.exit(main())
