# SPDX-License-Identifier: Apache-2.0
"""The benchmark of single matmuls and convolutions: its measurements, and the committed results."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from smartmem_tvm.frontend import onnxruntime_session, read_model
from smartmem_tvm.runtime.speed_kernels import OPERANDS, build, multiply_adds
from smartmem_tvm.schedule import CpuParams
from smartmem_tvm.target import host_target
from smartmem_tvm.tools.bench.turns import RunEffort

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import shapes  # noqa: E402
from shape_list import CONVOLUTIONS, MATMULS, SHAPES, Convolution  # noqa: E402
from shape_systems import OPENBLAS, ORT, OURS, PEAK, TVM  # noqa: E402

RESULTS = json.loads((ROOT / "benchmarks" / "shapes.json").read_text(encoding="utf-8"))
ROWS = [(count, name, row) for count, found in RESULTS["threads"].items() for name, row in found["shapes"].items()]


def test_every_shape_was_measured_on_every_system():
    assert len(MATMULS) == len(CONVOLUTIONS) == 12 and len(SHAPES) == 24
    assert set(RESULTS["threads"]) == {"1", "4"}
    for count, name, row in ROWS:
        expected = {PEAK, OURS, ORT} | ({OPENBLAS} if SHAPES[name] in MATMULS else set())
        assert set(row) == expected | ({TVM} if count == "1" else set())
    assert all({name for number, name, _ in ROWS if number == count} == set(SHAPES) for count in ("1", "4"))


@pytest.mark.parametrize("count, name, row", ROWS, ids=lambda each: each if isinstance(each, str) else "")
def test_committed_results_are_right(count, name, row):
    assert all(facts["error"] <= 1e-4 for system, facts in row.items() if system != PEAK)
    assert all(facts["gflops"] > 0 and facts["runs"] >= 3 for facts in row.values())


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=lambda shape: shape.name)
def test_operations_are_those_of_the_result(shape: Convolution):
    arrays = shape.arrays()
    model = shape.model()
    (result,) = onnxruntime_session(read_model(model), 1).run(None, {"left": arrays["left"]})
    per_element = shape.kernel**2 * shape.channels // shape.groups
    if shape.transposed:  # every pixel spreads to kernel x kernel results
        assert shape.flops == 2 * arrays["left"].size * shape.filters * shape.kernel**2 // shape.groups
    else:
        assert shape.flops == 2 * result.size * per_element


def test_the_peak_is_measured_on_registers_alone():
    target = host_target()
    lines = build({"main": multiply_adds(1, target)}, target).mod.inspect_source("asm").splitlines()
    where = [n for n, line in enumerate(lines) if re.search(r"\b(vfn?madd|fmla)", line)]
    assert len(where) >= CpuParams.of(target).registers - OPERANDS
    assert not any("(%" in line for line in lines[where[0] : where[-1]])


@pytest.mark.device
def test_a_measurement_of_one_shape(capsys):
    found = shapes.measure(["192 x 49x32x49, right transposed"], 1, RunEffort(budget=0.01, least=1, most=1))
    (row,) = found["shapes"].values()
    assert set(row) == {PEAK, OURS, OPENBLAS, ORT, TVM}
    assert all(facts["gflops"] > 0 for facts in row.values())
    assert all(facts["error"] < 1e-4 for system, facts in row.items() if system != PEAK)
    assert found["openblas_core"] != "unknown"
    assert "1 thread" in capsys.readouterr().out


@pytest.mark.device
def test_a_system_that_fails_is_named(monkeypatch):
    monkeypatch.setitem(SHAPES, "impossible", None)
    with pytest.raises(shapes.UserError, match="failed with"):
        shapes.measure(["impossible"], 1, RunEffort(budget=0.01, least=1, most=1))


def test_arrays_are_the_same_in_every_process():
    for shape in SHAPES.values():
        first, second = shape.arrays(), shape.arrays()
        assert all(np.array_equal(first[name], second[name]) for name in first)
