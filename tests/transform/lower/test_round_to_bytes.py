# SPDX-License-Identifier: Apache-2.0
"""RoundToBytes: the integers of ONNX's definition, at ties too, and which quotients stay divisions."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import tirx

from against_onnxruntime import model_of
from smartmem_tvm import compile, from_onnx, optimize
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.transform import RoundToBytes

ENDS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
EXPONENTS = [(-20, 20), (-62, -58), (-130, -120), (58, 62)]
"""Of scales: usual ones, around both ends of those that have an inverse here, and very small ones."""


def near_ties(random: np.random.Generator, scale: np.float32, low: int, high: int) -> np.ndarray:
    """Numbers whose quotients are integers and halves, or as close as float32 gets, beyond the bounds as well."""
    middle = random.integers(2 * low - 9, 2 * high + 9, 3000) / 2
    x = (middle * np.float64(scale)).astype("float32")
    return np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])


def quantized(x: np.ndarray, scale: np.float32, zero: int, dtype: str) -> np.ndarray:
    """ONNX's definition; NaN becomes the least number."""
    low, high = ENDS[dtype]
    with np.errstate(all="ignore"):
        total = np.rint(x / scale).astype("float64") + zero
    return np.clip(np.nan_to_num(total, nan=low, posinf=high, neginf=low), low, high).astype(dtype)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_quantizations(seed):
    random = np.random.default_rng(seed)
    dtype = [*ENDS][seed % len(ENDS)]
    low, high = ENDS[dtype]
    scale = np.float32(2.0 ** random.uniform(*EXPONENTS[seed // 4 if seed > 7 else 0]))
    zero = int(random.integers(low, high + 1))
    x = near_ties(random, scale, low - zero, high - zero)
    x[:5] = np.inf, -np.inf, np.nan, 0.0, -0.0
    constants = {"s": scale, "z": np.asarray(zero, dtype)}
    model = model_of(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], {"x": x}, {"y": dtype}, constants, 21
    )
    (got,) = compile(from_onnx(model), "cpu").run(x)
    np.testing.assert_array_equal(got, quantized(x, scale, zero, dtype))


def kernel(scale, cpu: str = "haswell", known: bool = True) -> str:
    """The scheduled kernel of a quantization by one scale."""
    rest, inputs = {"z": np.zeros(np.shape(scale), "uint8") + np.uint8(3)}, {"x": np.zeros((8, 64), "float32")}
    (rest if known else inputs)["s"] = np.asarray(scale, "float32")
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1)
    model = model_of([node], inputs, {"y": "uint8"}, rest, 21)
    with tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1}) as target:
        mod = RoundToBytes()(ScheduleKernels()(optimize(from_onnx(model), target)))
    return next(each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)).script()


def test_a_known_scale_becomes_an_inverse():
    made = kernel(0.02)
    assert "llvm.fma" in made and "nearbyint" not in made and "12582912" in made


@pytest.mark.parametrize(
    ("scale", "cpu", "known"),
    [
        (0.02, "haswell", False),  # may be too small for an inverse
        (1e-30, "haswell", True),
        (-0.02, "haswell", True),
        (np.full(64, 0.02), "haswell", True),  # one for each column
        (0.02, "core2", True),  # no fused multiply-add
    ],
)
def test_what_stays_a_division(scale, cpu, known):
    made = kernel(scale, cpu, known)
    assert "llvm.fma" not in made and "nearbyint" not in made and "12582912" in made
