# SPDX-License-Identifier: Apache-2.0
"""Quads on CPUs that multiply pairs: the same results, by the instruction for pairs."""

import numpy as np
import pytest
import tvm
from onnx import helper

from against_onnxruntime import RUNTIME, integers, model_of
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.pipeline import PHASES, Options, run_phases
from smartmem_tvm.target import parse_target


def layer(dtype: str = "int8", hidden: int = 35, batch: int = 3) -> tuple:
    """A quantized LSTM and its input."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4, batch, 6)).astype("float32")
    known = {name: integers(random, dtype, (1, rows, 4 * hidden)) for name, rows in (("w", 6), ("r", hidden))}
    known |= {"scale": np.array([0.01], "float32"), "zero": np.array([0 if dtype == "int8" else 100], dtype)}
    names = ["x", "w", "r", *[""] * 5, "scale", "zero", "scale", "zero"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain=RUNTIME, hidden_size=hidden)
    return model_of([node], {"x": x}, {"y": ("float32", (4, 1, batch, hidden))}, known), x


def scheduled(model, cpu: str) -> str:
    """The kernel of the steps as it is compiled for a processor."""
    target = parse_target(f'{{"kind": "llvm", "mcpu": "{cpu}", "num-cores": 1}}')
    phases = [phase for phase in PHASES if phase.on(target)]
    last = next(n for n, phase in enumerate(phases) if phase.name == "schedule")
    with target:
        mod = run_phases(from_onnx(model), phases[: last + 1], Options())
    (steps,) = (func for gvar, func in mod.functions_items() if "lstm" in gvar.name_hint)
    assert isinstance(steps, tvm.tirx.PrimFunc)
    return steps.script()


@pytest.mark.parametrize(
    ("cpu", "dtype", "found"),
    [
        ("cascadelake", "int8", "vpdpbusd"),
        ("alderlake", "int8", "vpdpbusd"),
        ("skylake-avx512", "int8", "pmadd"),
        ("haswell", "int8", "pmadd"),
        ("cascadelake", "uint8", "pmadd"),  # weights of nine bits
        ("haswell", "uint8", "pmadd"),
    ],
)
def test_the_instruction(cpu, dtype, found):
    script = scheduled(layer(dtype)[0], cpu)
    assert [name for name in ("vpdpbusd", "pmadd") if name in script] == [found]


@pytest.mark.each_value
@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("hidden", [1, 16, 35])
def test_results_are_equal_on_all_processors(hidden, batch):
    model, x = layer("int8", hidden, batch)
    names = ("haswell", "x86-64") if hidden == 35 else ("haswell",) if hidden == 1 else ("x86-64",)
    want, *others = (
        compile(from_onnx(model), parse_target(cpu)).run(x)[0]
        for cpu in ("cpu", *(f'{{"kind": "llvm", "mcpu": "{name}", "num-cores": 2}}' for name in names))
    )
    for each in others:
        np.testing.assert_allclose(each, want, rtol=0, atol=3e-6 * np.abs(want).max())
