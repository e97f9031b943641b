# SPDX-License-Identifier: Apache-2.0
"""The parameters of a built candidate, told by the candidate itself: types, shapes, and memory scopes.

MetaSchedule tells its runner types and shapes only. A texture is no buffer, though, and what a kernel keeps in memory
between its launches is a parameter that only its schedule knows of; so a function of the built module has it all::

    kernel_parameters(0) == ord("["), kernel_parameters(1) == ord("["), ...    # a JSON text, 0 behind its end
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import count, takewhile

import numpy as np
import tvm
from tvm import tirx

NAME = "kernel_parameters"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: element type, extents, memory scope."""

    dtype: str
    shape: tuple[int, ...]
    scope: str = "global"

    def on(self, device: tvm.runtime.Device, generator: np.random.Generator) -> tvm.runtime.Tensor:
        """A tensor of numbers in [0.5, 1.5), or of zeros where they may be indices: these are within any bounds."""
        if self.dtype.startswith("float"):
            array = (generator.random(self.shape, dtype="float32") + 0.5).astype(self.dtype)
        else:
            array = np.zeros(self.shape, self.dtype)
        return tvm.runtime.empty(self.shape, self.dtype, device, mem_scope=self.scope).copyfrom(array)


def parameters(func: tirx.PrimFunc) -> list[Parameter]:
    """The parameters of a kernel."""
    return [Parameter(str(p.dtype), tuple(int(dim) for dim in p.shape), str(p.scope())) for p in func.params]


def with_parameters_told(func: tirx.PrimFunc) -> tvm.IRModule:
    """A module of a scheduled kernel, ``main``, and of what tells its parameters."""
    return tvm.IRModule({"main": func, NAME: _text(json.dumps([astuple(each) for each in parameters(func)]))})


def _text(text: str) -> tirx.PrimFunc:
    """A function of the host that returns the bytes of a text, one by one."""
    position = tirx.Var("position", "int32")
    bytes_ = [
        tirx.IfThenElse(position == number, tirx.stmt.Return(tirx.const(byte, "int32")), None)
        for number, byte in enumerate(text.encode())
    ]
    end = tirx.stmt.Return(tirx.const(0, "int32"))
    func = tirx.PrimFunc([position], tirx.SeqStmt([*bytes_, end]), tvm.ir.PrimType("int32"))
    return func.with_attrs({"global_symbol": NAME, "tirx.is_host_func": True})


def parameters_of(module: tvm.runtime.Module) -> list[Parameter]:
    """What a module that was built from `with_parameters_told` tells."""
    text = bytes(takewhile(bool, _bytes(module[NAME]))).decode()
    return [Parameter(dtype, tuple(shape), scope) for dtype, shape, scope in json.loads(text)]


def _bytes(tell: tvm.runtime.PackedFunc) -> Iterator[int]:
    return map(tell, count())


def arguments(module: tvm.runtime.Module, device: tvm.runtime.Device) -> list[tvm.runtime.Tensor]:
    """Tensors for all parameters of a built candidate, the same numbers every time."""
    generator = np.random.default_rng(0)
    return [each.on(device, generator) for each in parameters_of(module)]
