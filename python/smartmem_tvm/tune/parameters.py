# SPDX-License-Identifier: Apache-2.0
"""The parameters of a built candidate, in a file beside it: types, shapes, and memory scopes.

MetaSchedule gives its runner only types and shapes. But a texture is no buffer, and workspaces of a kernel are
parameters that only the schedule creates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx

FILE = "parameters.json"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: element type, extents, memory scope."""

    dtype: str
    shape: tuple[int, ...]
    scope: str = "global"

    def on(self, device: tvm.runtime.Device, generator: np.random.Generator) -> tvm.runtime.Tensor:
        """Return a tensor of numbers in [0.5, 1.5), or of zeros for integers: zeros are valid indices."""
        if self.dtype.startswith("float"):
            array = (generator.random(self.shape, dtype="float32") + 0.5).astype(self.dtype)
        else:
            array = np.zeros(self.shape, self.dtype)
        return tvm.runtime.empty(self.shape, self.dtype, device, mem_scope=self.scope).copyfrom(array)


def parameters(func: tirx.PrimFunc) -> list[Parameter]:
    """Return the parameters of a kernel."""
    return [Parameter(str(p.dtype), tuple(int(dim) for dim in p.shape), str(p.scope())) for p in func.params]


def has_fixed_shapes(func: tirx.PrimFunc) -> bool:
    """Whether the parameters of a kernel are tensors with constant dimensions."""
    return all(
        tirx.is_buffer_var(param) and all(isinstance(dim, tirx.IntImm) for dim in param.shape) for param in func.params
    )


def write_parameters(found: Sequence[Parameter], artifact: Path) -> None:
    """Write parameters into a file beside the built artifact."""
    text = json.dumps([astuple(each) for each in found])
    artifact.with_name(FILE).write_text(text, encoding="utf-8")


def read_parameters(artifact: Path) -> list[Parameter]:
    """Read the file that `write_parameters` wrote."""
    return as_parameters(json.loads(artifact.with_name(FILE).read_text(encoding="utf-8")))


def as_parameters(rows: Iterable[Sequence]) -> list[Parameter]:
    """Return parameters from JSON rows, each a list of its fields."""
    return [Parameter(dtype, tuple(shape), scope) for dtype, shape, scope in rows]


def arguments(found: Sequence[Parameter], device: tvm.runtime.Device) -> list[tvm.runtime.Tensor]:
    """Return tensors for the parameters of a kernel, with the same numbers every time."""
    generator = np.random.default_rng(0)
    return [each.on(device, generator) for each in found]
