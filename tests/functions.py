# SPDX-License-Identifier: Apache-2.0
"""Modules of several functions for tests."""

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from helpers import constant, op, random


class Linear(nn.Module):
    """Functions of one matrix and one bias, as TVM's `nn` makes them."""

    def __init__(self, size: int):
        self.layer = nn.Linear(size, size)

    def forward(self, x: nn.Tensor):
        return self.layer(x)

    def prefill(self, x: nn.Tensor):
        return self.layer(x)

    def decode(self, x: nn.Tensor):
        return nn.op.relu(self.layer(x))


def linear(shapes: Mapping[str, tuple], **modes: str) -> tuple[tvm.IRModule, np.ndarray, np.ndarray]:
    """A module with these functions of `Linear`, of one input ``x`` of a shape each; its weight and bias."""
    size = next(iter(shapes.values()))[-1]
    mode = {"param_mode": "plain", "effect_mode": "none"} | modes
    spec = {name: {"x": nn.spec.Tensor(shape, "float32"), "$": mode} for name, shape in shapes.items()}
    mod, _ = Linear(size).export_tvm(spec, debug=mode["effect_mode"] != "none")
    return mod, *random((size, size), (size,))


def with_weights(mod: tvm.IRModule, weight: np.ndarray, bias: np.ndarray) -> tvm.IRModule:
    """The same functions of ``x`` alone."""
    for gvar in mod.get_global_vars():
        values = {"layer.weight": weight, "layer.bias": bias}
        mod = relax.transform.BindParams(gvar.name_hint, values)(mod)
    return mod


def called_and_caller(size: int = 4) -> tvm.IRModule:
    """``twice`` is 2 x w, and ``main`` exp(twice(x)) w; both are public, `w` is ``constant(size, size)``."""
    builder, weight = relax.BlockBuilder(), constant(size, size)
    x, y = (relax.Var(name, relax.TensorType((2, size), "float32")) for name in "xy")
    with builder.function("twice", [x]):
        with builder.dataflow():
            out = builder.emit_output(op.matmul(op.add(x, x), weight))
        twice = builder.emit_func_output(out)
    with builder.function("main", [y]):
        with builder.dataflow():
            out = builder.emit_output(op.matmul(op.exp(builder.emit(relax.Call(twice, [y]))), weight))
        builder.emit_func_output(out)
    return builder.get()
