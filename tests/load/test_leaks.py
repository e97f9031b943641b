# SPDX-License-Identifier: Apache-2.0
"""What stays behind after many inferences, and after many models that were compiled and run."""

import gc
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import tvm

import smartmem_tvm
from attention_model import attention_model
from fake_driver import run_child
from load.sizes import CYCLES, INFERENCES
from small_network import network
from smartmem_tvm.target import parse_target

WARM_UP = 0.1  # of the inferences, after which memory is as large as it gets


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def held() -> dict[str, int]:
    """What a process holds of what there is only so much of."""
    found = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}  # noqa: PTH208
    live = tvm.get_global_func("smartmem.opencl.live_objects", allow_missing=True)
    return found | ({f"OpenCL {name}": int(count) for name, count in live().items()} if live else {})


def infer(count: int) -> list[int]:
    """Memory after a tenth of some inferences, and after all."""
    compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(network()))
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("float32")
    sizes = []
    for part in (WARM_UP, 1 - WARM_UP):
        for _ in range(int(count * part)):
            compiled.run(image)
        gc.collect()
        sizes.append(resident())
    return sizes


def cycle(count: int, target: str) -> list[dict[str, int]]:
    """What is held after a few models, and after all of them."""
    kinds = []
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype("float32")
    for number in range(count):
        compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(attention_model()), parse_target(target))
        assert np.isfinite(compiled.run(x)[0]).all()
        del compiled
        gc.collect()
        if number in (9, count - 1):
            kinds.append(held())
    return kinds


@pytest.mark.slow
def test_inferences_take_no_memory_with_them():
    before, after = run_child(infer, INFERENCES, timeout=3600).value
    assert after < 1.01 * before, f"{before / 1e6:.1f} MB, then {after / 1e6:.1f} MB"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_models_leave_nothing_behind(target, tmp_path):
    before, after = run_child(cycle, CYCLES, target, timeout=7200).value
    assert after == before
