# SPDX-License-Identifier: Apache-2.0
"""Commands with ``--target opencl``, and what they say where there is no driver."""

import os
import subprocess
import sys

import numpy as np
import pytest

TARGET = ("--target", "opencl")


def test_verify(smartmem, model_path):
    outcome = smartmem("verify", model_path, *TARGET, "--rtol", "1e-5", "--json")
    assert outcome.code == 0, outcome.err
    assert 0 < outcome.data["max_rel_err"] < 1e-5


def test_run_file_and_folder(smartmem, model_path, tmp_path):
    folder = tmp_path / "out"
    compiled = smartmem("compile", model_path, *TARGET, "-o", folder, "--json")
    assert compiled.code == 0, compiled.err
    assert "opencl" in compiled.data["manifest"]["target"] and compiled.data["manifest"]["cpu"] == ""
    runs = []
    for arguments in ([model_path, *TARGET], [folder], [model_path]):
        written = tmp_path / "y.npz"
        outcome = smartmem("run", *arguments, "--seed", 3, "--repeat", 2, "--output", written, "--json")
        assert outcome.code == 0, outcome.err
        with np.load(written) as arrays:
            runs.append(arrays["y"])
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_allclose(runs[0], runs[2], rtol=1e-4, atol=1e-5)


def test_stats_compare_with_tvms_default_pipeline(smartmem, model_path):
    outcome = smartmem("stats", model_path, *TARGET, "--run", "--repeat", 2, "--json")
    assert outcome.code == 0, outcome.err
    sides = [outcome.data[name] for name in ("tvm_default", "smartmem")]
    assert sides[0]["kernels"] > sides[1]["kernels"] > 0
    assert all(side["latency_ms"] > 0 for side in sides)


@pytest.mark.device
@pytest.mark.parametrize("command", ["run", "verify"])
def test_without_a_driver(command, model_path):
    environment = {**os.environ, "SMARTMEM_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}
    arguments = [sys.executable, "-m", "smartmem_tvm", command, model_path, *TARGET]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2 and not ended.stdout
    assert "/nowhere/libOpenCL.so" in ended.stderr and "Traceback" not in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if "OpenCL" in line]) == 1
