# SPDX-License-Identifier: Apache-2.0
"""torch as a baseline: a network with the weights of its ONNX file, on a CPU or a GPU."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ....errors import UserError
from ...timm_networks import DEFINED_HERE, NAMES, definition, has_definition, import_timm
from ..child import System
from ..names import TORCH_MODES
from . import missing_package
from .torch_weights import load_weights

if TYPE_CHECKING:
    import numpy as np
    import torch


def build_network(path: Path) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """Return a network with the weights of its exported ONNX file, and inputs of its shapes.

    Parameters
    ----------
    path : Path
        A file named as in `timm_networks.NAMES`, or one whose network the repository defines.

    Raises
    ------
    UserError
        If the network has no definition here, or its weights do not fit.
    """
    if not has_definition(path):
        raise UserError(
            f"torch has no definition of {path.name}; it can run {', '.join((*NAMES, *DEFINED_HERE))} of models/."
        )
    import onnx
    import torch

    from ....light import fill

    module = _network(path).eval()
    model = fill(onnx.load(path))
    load_weights(module, model)
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input]
    return module.requires_grad_(False), [torch.zeros(shape) for shape in shapes]


def _network(path: Path) -> torch.nn.Module:
    """Return the network without its weights."""
    if path.stem not in NAMES:
        sys.path.insert(0, str(definition(path).parent.parent))  # a package: some definitions share parts
        return importlib.import_module(f"models.{path.stem}").build()
    try:
        return import_timm().create_model(NAMES[path.stem], pretrained=False)
    except ImportError as error:
        raise missing_package("torch", error) from error


class TorchSystem(System):
    """A network in one of `TORCH_MODES`, in float32 throughout, on the CPU or the first CUDA device."""

    def __init__(self, request: dict):
        torch = _configured(request["threads"])
        self.device = torch.device("cpu" if (request.get("target") or "cpu").split()[0] in ("cpu", "llvm") else "cuda")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"{request['system']} finds no CUDA device; install a torch built for this driver's CUDA.")
        start = time.perf_counter()
        self.module, self.inputs = build_network(Path(request["path"]))
        self.module = self.module.to(self.device)
        self.inputs = [each.to(self.device) for each in self.inputs]
        imported = time.perf_counter()
        mode = TORCH_MODES[request.get("kind", request["system"])]
        if mode is not None:
            # Weights as constants: torch then packs and folds them at compile time, as the other systems do.
            torch._inductor.config.freezing = self.device.type == "cpu"
            self.module = torch.compile(self.module, mode=mode, dynamic=False, fullgraph=True)
        for _ in range(3):  # the first run compiles, the second captures CUDA graphs, which the third replays
            self._call()
        seconds = {"import": imported - start, "compile": time.perf_counter() - imported}
        self.facts = {"seconds": seconds, "version": f"torch {torch.__version__}"}

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Copy the arrays into the inputs that it was compiled with, and run."""
        import torch

        for tensor, array in zip(self.inputs, inputs.values(), strict=True):
            tensor.copy_(torch.from_numpy(array))
        outputs = self._call()
        outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
        return [each.cpu().numpy() for each in outputs]

    def _call(self) -> object:
        import torch

        with torch.no_grad():
            outputs = self.module(*self.inputs)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return outputs

    def run(self) -> None:
        """Run once and wait for the device."""
        self._call()


def _configured(threads: int) -> ModuleType:
    """Import torch with threads that sleep between runs, and without rounding to TF32."""
    # OpenMP's threads would spin on the cores of the next measurement; OpenMP reads this when it is loaded.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        import torch
    except ImportError as error:
        raise missing_package("torch", error) from error
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the fastest convolution by measurement, not by heuristics
    torch.set_float32_matmul_precision("highest")
    return torch
