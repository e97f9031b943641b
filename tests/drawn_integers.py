# SPDX-License-Identifier: Apache-2.0
"""Operators of integers with any of their attributes, drawn at random: results on a target equal ONNX Runtime's.

PYTHONPATH=tests:python python tests/drawn_integers.py cuda 200        # seeds 0 to 199; a line for each that differs
"""

from __future__ import annotations

import collections
import json
import sys
import time
import traceback

import numpy as np
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, integers, model_of, reference, weights
from smartmem_tvm.target import parse_target

PAIRS = (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 32, 48, 64, 67, 96, 128)
"""Unit sizes, primes, and those of tiles."""


class Drawn:
    """A node of integers: `nodes`, `inputs`, `constants`, and the type of its result."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.left, self.right = PAIRS[self.random.integers(3)]
        makes = (
            self.mat_mul_integer,
            self.qlinear_mat_mul,
            self.q_gemm,
            self.dynamic,
            self.conv,
            self.conv,
            self.quantize,
        )
        self.attributes, self.domain = {}, ""
        self.op, self.inputs, self.constants, self.result = makes[seed % len(makes)]()

    @property
    def model(self):
        """The model of the node alone."""
        names = [*self.inputs, *self.constants]
        node = helper.make_node(self.op, names, ["y"], domain=self.domain, **self.attributes)
        return model_of([node], self.inputs, {"y": self.result}, self.constants)

    def size(self) -> int:
        """A size."""
        return int(self.random.choice(SIZES))

    def zero(self, dtype: str, shape=()) -> np.ndarray:
        """A zero point; that of a signed weight is 0 in ONNX Runtime's kernels."""
        return integers(self.random, dtype, shape) if self.random.random() < 0.6 else np.zeros(shape, dtype)

    def of_weights(self, columns: int) -> np.ndarray:
        """Zero points of weights: one, or one for each column."""
        shape = (columns,) if self.random.random() < 0.5 else ()
        return (
            np.zeros(shape, self.right) if self.right == "int8" else np.full(shape, integers(self.random, self.right))
        )

    def scales(self, columns: int) -> np.ndarray:
        """Scales of weights: one, or one for each column."""
        shape = (columns,) if self.random.random() < 0.5 else ()
        return np.asarray(self.random.random(shape) * 0.01 + 1e-4, "float32")

    def matrices(self, batch: bool = True) -> tuple:
        """Two operands."""
        rows, depth, columns = self.size(), self.size(), self.size()
        outer = (int(self.random.integers(1, 4)),) if batch and self.random.random() < 0.4 else ()
        return integers(self.random, self.left, (*outer, rows, depth)), weights(
            self.random, self.right, (depth, columns)
        )

    def mat_mul_integer(self) -> tuple:
        """MatMulInteger; the right side may be no constant."""
        a, b = self.matrices()
        rest = {"za": self.zero(self.left), "zb": self.of_weights(b.shape[-1])}
        known = self.random.random() < 0.8
        return "MatMulInteger", {"a": a} if known else {"a": a, "b": b}, {"b": b, **rest} if known else rest, "int32"

    def qlinear_mat_mul(self) -> tuple:
        """QLinearMatMul."""
        a, b = self.matrices()
        scale = self.scales(b.shape[-1])
        rest = {"sa": np.float32(0.02), "za": self.zero(self.left), "b": b, "sb": scale}
        rest |= {"zb": np.full(scale.shape, self.of_weights(1).reshape(-1)[0])}
        return "QLinearMatMul", {"a": a}, rest | {"sy": np.float32(0.03), "zy": self.zero(self.left)}, self.left

    def q_gemm(self) -> tuple:
        """QGemm."""
        a, b = self.matrices(batch=False)
        self.domain, scale = RUNTIME, self.scales(b.shape[-1])
        zero = np.full(scale.shape, self.of_weights(1).reshape(-1)[0])
        rest = {"sa": np.float32(0.02), "za": self.zero(self.left), "b": b, "sb": scale, "zb": zero}
        rest |= {"c": self.random.integers(-900, 900, b.shape[-1]).astype("int32")}
        return "QGemm", {"a": a}, rest | {"sy": np.float32(0.03), "zy": self.zero(self.left)}, self.left

    def dynamic(self) -> tuple:
        """MatMulInteger of few rows."""
        a, b = self.matrices(batch=False)
        rest = {"b": b, "za": self.zero(self.left), "zb": self.of_weights(b.shape[-1])}
        return "MatMulInteger", {"a": a[: int(self.random.integers(1, 8))]}, rest, "int32"

    def quantize(self) -> tuple:
        """QuantizeLinear of numbers of which many are at ties, and some are infinite."""
        scale, shape = np.float32(self.random.random() + 1e-3), (self.size(), self.size())
        x = self.random.integers(-600, 600, shape).astype("float32") / 2 * scale
        x += (self.random.random(shape) < 0.3) * self.random.standard_normal(shape).astype("float32")
        x = np.where(self.random.random(shape) < 0.02, self.random.choice([np.inf, -np.inf]), x).astype("float32")
        return "QuantizeLinear", {"x": x}, {"s": scale, "z": self.zero(self.left)}, self.left

    def conv(self) -> tuple:
        """QLinearConv or ConvInteger with groups, strides, dilations, and uneven padding."""
        random = self.random
        rank, groups = int(random.choice([1, 2, 2, 2, 3])), int(random.choice([1, 1, 1, 2, 3]))
        depth, filters = (
            groups * int(random.choice([1, 3, 4, 8, 16, 32])),
            groups * int(random.choice([1, 2, 5, 8, 24, 40])),
        )
        kernel, strides, dilations = (random.integers(1, most + 1, rank) for most in (3, 2, 2))
        sizes = random.integers(1, 12, rank) + (kernel - 1) * dilations
        drawn = {
            "kernel_shape": kernel,
            "strides": strides,
            "dilations": dilations,
            "pads": random.integers(0, 3, 2 * rank),
        }
        self.attributes = {name: each.tolist() for name, each in drawn.items()} | {"group": groups}
        x = integers(random, self.left, (int(random.integers(1, 3)), depth, *sizes))
        filled, zero = weights(random, self.right, (filters, depth // groups, *kernel)), self.of_weights(filters)
        if self.left == "uint8" and random.random() < 0.4:  # ONNX Runtime has ConvInteger of unsigned pictures only
            rest = {"w": filled, "zx": self.zero(self.left), "zw": zero.reshape(-1)[0]}
            return "ConvInteger", {"x": x}, rest, "int32"
        scale = np.asarray(random.random(zero.shape) * 0.1, "float32")
        rest = {"sx": np.float32(0.02), "zx": self.zero(self.left), "w": filled, "sw": scale, "zw": zero}
        rest |= {"sy": np.float32(0.7), "zy": self.zero(self.left)}
        rest |= {"b": random.integers(-900, 900, filters).astype("int32")} if random.random() < 0.5 else {}
        return "QLinearConv", {"x": x}, rest, self.left


def differences(seed: int, target, precision: str = "float32") -> tuple[str, int, list[str]]:
    """Return the operator of a seed, how many numbers of its result differ from ONNX Runtime's, and its rules."""
    drawn = Drawn(seed)
    model = drawn.model
    (want,) = reference(model, drawn.inputs, threads=1)
    for value in model.graph.output:
        value.type.tensor_type.shape.SetInParent()
        for size in want.shape:
            value.type.tensor_type.shape.dim.add().dim_value = size
    compiled = sm.compile(sm.from_onnx(model), target, sm.Options(precision=precision))
    (got,) = compiled.run(*drawn.inputs.values())
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    return drawn.op, int((got != want).sum()), [each["name"] for each in compiled.rules.values()]


def main() -> int:
    """Compare the seeds that the command line asks for: target, how many, the first one, seconds at most."""
    name, count, first, seconds = (*sys.argv[1:], *("cuda", "100", "0", "1e9")[len(sys.argv) - 1 :])
    target, begin, bad, rules = parse_target(name), time.monotonic(), 0, collections.Counter()
    for done, seed in enumerate(range(int(first), int(first) + int(count))):
        if time.monotonic() - begin > float(seconds):
            count = done
            break
        found: list[str] = []
        try:
            op, wrong, found = differences(seed, target)
            rules.update(found)
        except Exception as error:
            op, wrong = "?", traceback.format_exception_only(error)[-1].strip()[-300:]
        if wrong:
            bad += 1
            print(json.dumps({"seed": seed, "operator": op, "differ": wrong, "rules": found}), flush=True)
    print(json.dumps({"seeds": int(count), "from": int(first), "different": bad, "rules": dict(rules)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
