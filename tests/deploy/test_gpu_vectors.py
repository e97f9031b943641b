# SPDX-License-Identifier: Apache-2.0
"""Vectors of GPU kernels: none of booleans, none across the boundary of a vector, whatever is fused."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import smartmem_tvm
from covering import seeds
from gpu_vectors import wrong_in
from helpers import module
from smartmem_tvm import Options
from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.target import parse_target

op = relax.op
MODELS = Path(__file__).resolve().parents[2] / "models"
SWITCHES = ("rewrite", "merge_projections", "eliminate", "simplify", "fuse", "fuse_attention", "layout")
OFF = [(), *((name,) for name in SWITCHES), ("eliminate", "fuse"), ("eliminate", "simplify"), ("fuse", "simplify")]
TARGETS = ("cuda", "adreno-740", "mali-g57")
DTYPES = ("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool")


def without(names) -> Options:
    return replace(Options(), **dict.fromkeys(names, False))


def _moved(x, rng):
    """Three random movements of a tensor."""
    x = relax.BlockBuilder.current().emit(x)
    for _ in range(3):
        shape = [int(n) for n in x.ty.shape]
        kind = rng.integers(5)
        if kind == 0:
            x = op.permute_dims(x, [int(n) for n in rng.permutation(len(shape))])
        elif kind == 1:
            begin = [int(rng.integers(0, n)) if n > 2 else 0 for n in shape]
            x = op.strided_slice(x, list(range(len(shape))), begin, shape)
        elif kind == 2:
            x = op.concat([x, x], int(rng.integers(len(shape))))
        elif kind == 3:
            x = op.reshape(x, [shape[0] * shape[1], *shape[2:], 1])
        else:
            x = op.flip(x, int(rng.integers(len(shape))))
        x = relax.BlockBuilder.current().emit(x)
    return x


def _network(seed: int):
    """A tensor that is moved, compared with a moved one, and the results moved again."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 33], 3))
    dtype = str(rng.choice(DTYPES))

    def build(x):
        mine = _moved(x, rng)
        number = mine if dtype != "bool" else op.astype(mine, "int32")
        above = op.greater(number, relax.const(0, "int32" if dtype == "bool" else dtype))
        return _moved(above, rng), mine, op.astype(op.logical_not(above), "float32")

    return module(build, (shape, dtype))


@pytest.mark.each_value
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(3))
def test_random_movements(seed, target):
    mod = _network(seed)
    for off in OFF[seed % 3 :: 3]:
        assert wrong_in(mod, parse_target(target), without(off)) == [], off


@pytest.mark.each_value
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", seeds(3, 11, 24)[3:])
def test_more_random_movements(seed, target):
    mod = _network(seed)
    for off in [*OFF, *combinations(SWITCHES, 2)]:
        assert wrong_in(mod, parse_target(target), without(off)) == [], off


@pytest.mark.slow
@pytest.mark.parametrize("off", OFF, ids=" ".join)
@pytest.mark.parametrize("name", [entry.file for entry in SUITES["gpu"]])
def test_demo_networks(name, off):
    mod = smartmem_tvm.from_onnx(MODELS / f"{name}.onnx")
    assert wrong_in(mod, parse_target("cuda"), without(off)) == []
