# SPDX-License-Identifier: Apache-2.0
"""Networks through OpenCL with halves in memory, in buffers and in textures.

The five demo networks in all combinations take an hour where a CPU is the device: ``make bench-precision`` records
them, and ``test_precision_docs.py`` reads the record. This file tests one of them, and two small networks.
"""

from pathlib import Path

import numpy as np
import pytest

import smartmem_tvm as sm
from half_networks import NETWORKS
from helpers import module, random
from opencl_rules import check_opencl
from smartmem_tvm.frontend import check_inputs, from_onnx, read_model, run_onnxruntime
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.check_images import planned_memory

MODELS = Path(__file__).resolve().parent.parent / "models"
TARGETS = {"buffers": "opencl", "textures": "qcom/adreno-opencl-texture"}
TOLERANCE = 3e-3  # of the largest magnitude of an output

each_memory = pytest.mark.parametrize("memory", TARGETS)


def compiled(mod, memory: str) -> sm.Compiled:
    made = sm.compile(mod, parse_target(TARGETS[memory]), sm.Options(precision="half-storage"))
    assert check_opencl(made.executable, planned_memory(made.graph)) == made.texel_reads
    return made


def error(got: np.ndarray, expected: np.ndarray) -> float:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.device
@each_memory
@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks(name, memory):
    build, shape = NETWORKS[name]
    mod = module(build, shape)
    (x,) = random(shape)
    (expected,) = sm.compile(mod).run(x)
    code = compiled(mod, memory)
    (got,) = code.run(x)
    assert 1e-5 < error(got, expected) <= TOLERANCE
    placed = [entry for entry in read_log(code.graph) if entry["pass"] == "PlaceTextures"]
    assert any(entry["memory"] == "texture" for entry in placed) == (memory == "textures")


@pytest.mark.slow
@each_memory
def test_bert(memory):
    model = read_model(MODELS / "bert_base.onnx", {})
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto), 0))
    expected = run_onnxruntime(model, dict(zip(model.inputs, arrays)))
    found = compiled(from_onnx(model), memory).run(*arrays)
    for got, reference in zip(found, expected, strict=True):
        assert error(got, reference) <= TOLERANCE
