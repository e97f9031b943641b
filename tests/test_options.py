# SPDX-License-Identifier: Apache-2.0
"""Small networks with options off, alone and in pairs, on a CPU and through OpenCL: as ONNX Runtime computes them."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import onnxruntime
import pytest
import tvm

import smartmem_tvm as sm
from option_networks import NETWORKS
from smartmem_tvm.target import parse_target

COMMON = ("rewrite", "merge_projections", "eliminate", "simplify", "fuse", "fuse_attention", "arena")
SWITCHES = {
    "llvm": (*COMMON, "schedule", "winograd"),
    "opencl": (*COMMON, "merge_chains"),
    "opencl-texture": (*COMMON, "textures", "layout"),
}
TOLERANCE = 1e-4  # of the largest magnitude of an output
DEFAULT = [(target, ()) for target in SWITCHES] + [(target, ("eliminate", "fuse")) for target in SWITCHES]
ALONE = [(target, (off,)) for target, switches in SWITCHES.items() for off in switches]
PAIRS = [(target, pair) for target, switches in SWITCHES.items() for pair in combinations(switches, 2)]


@cache
def expected(name: str) -> tuple[tvm.IRModule, np.ndarray, list[np.ndarray]]:
    """Return an imported network, its input, and ONNX Runtime's results."""
    model = NETWORKS[name]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(session.get_inputs()[0].shape).astype("float32")
    return sm.from_onnx(model), x, session.run(None, {"x": x})


def check(name: str, target: str, off: tuple[str, ...]) -> None:
    mod, x, outputs = expected(name)
    options = replace(sm.Options(), **dict.fromkeys(off, False))
    for found, reference in zip(sm.compile(mod, parse_target(target), options).run(x), outputs, strict=True):
        assert found.shape == reference.shape and found.dtype == reference.dtype
        assert np.abs(found - reference).max() <= TOLERANCE * np.abs(reference).max()


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize(("target", "off"), DEFAULT, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_options_and_no_fusion(name, target, off):
    check(name, target, off)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "off"), [*ALONE, *PAIRS], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_options_off(name, target, off):
    check(name, target, off)
