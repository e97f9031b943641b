# SPDX-License-Identifier: Apache-2.0
"""What is written down of a GPU beside a measurement."""

from types import SimpleNamespace

import pytest
import tvm

from smartmem_tvm.runtime.device import describe, nvidia_driver
from smartmem_tvm.runtime.opencl import devices


def tool(folder, monkeypatch, script: str) -> None:
    """Put a program of the name of NVIDIA's on the path, and nothing else."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_an_opencl_device():
    facts, first = describe(tvm.opencl(0)), devices()[0]
    assert facts == {"name": first.name, "driver": first.driver, "platform": f"{first.platform}, {first.version}"}
    assert all(facts.values())


def test_a_cuda_device(tmp_path, monkeypatch):
    wanted = '[ "$*" = "--query-gpu=driver_version --format=csv,noheader" ]'
    tool(tmp_path, monkeypatch, f"{wanted} && echo 580.159.04 && echo 580.159.04")
    device = SimpleNamespace(type="cuda", index=0, device_name="G", api_version=12080, compute_version="9.0")
    assert describe(device) == {
        "name": "G",
        "driver": "580.159.04",
        "platform": "CUDA 12.8, compute capability 9.0",
    }


@pytest.mark.parametrize("script", ["exit 9", "true"])
def test_nobody_tells_the_driver(tmp_path, monkeypatch, script):
    tool(tmp_path, monkeypatch, script)
    assert nvidia_driver() == ""
    (tmp_path / "nvidia-smi").unlink()
    assert nvidia_driver() == ""
