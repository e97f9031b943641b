# SPDX-License-Identifier: Apache-2.0
"""What export_models.py has to know of a network, and the two usual ways to come by one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from smartmem_tvm.tools.timm_networks import import_timm

from .weights import MATRIX, Row


@dataclass(frozen=True)
class Network:
    """One file in models/.

    Attributes
    ----------
    build : callable
        Returns the torch module.
    inputs : dict of str to torch.Tensor
        Example inputs, by the names that they get in the ONNX file.
    convolution : tuple of float
        Mean and standard deviation of the convolutions' weights, see :mod:`models.weights`.
    statistics : tuple of Row
        Parameters that need others than the usual statistics.
    """

    build: Callable[[], torch.nn.Module]
    inputs: dict[str, torch.Tensor]
    convolution: tuple[float, float] = MATRIX
    statistics: tuple[Row, ...] = ()


def image_network(name: str, size: int = 224, *, convolution=MATRIX, statistics=(), **changes: object) -> Network:
    """Return a timm classifier of `size` x `size` pixels; `changes` go to its constructor."""

    def build() -> torch.nn.Module:
        return import_timm().create_model(name, pretrained=False, **changes)

    return Network(build, {"x": torch.zeros(1, 3, size, size)}, convolution, statistics)


def local_network(name: str, *, convolution=MATRIX, statistics=()) -> Network:
    """Return the classifier of 224 x 224 pixels that ``build()`` of ``scripts/models/<name>.py`` returns."""

    def build() -> torch.nn.Module:
        return importlib.import_module(f"models.{name}").build()

    return Network(build, {"x": torch.zeros(1, 3, 224, 224)}, convolution, statistics)
