# SPDX-License-Identifier: Apache-2.0
"""Kernels in half arithmetic: a driver that has it would take them, and they compute with halves where it counts."""

import re
import runpy
from pathlib import Path

import pytest

import smartmem_tvm as sm
from clang import errors, programs
from half_networks import NETWORKS, TOKENS, transformer
from helpers import module
from opencl_rules import check_opencl
from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.check_images import planned_memory

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
COUNTS = runpy.run_path(str(ROOT / "benchmarks" / "llvm_counts.py"))
PHONES = ("adreno-740", "mali-g76")


def compiled(mod, device=PHONES[0], **options):
    made = sm.compile(mod, parse_target(device), sm.Options(precision="half", **options))
    assert check_opencl(made.executable, planned_memory(made.graph)) == made.texel_reads
    return programs(made.executable.mod)


@pytest.fixture(scope="module", params=NETWORKS)
def kernels(request) -> dict:
    build, shape = NETWORKS[request.param]
    return compiled(module(build, shape))


@pytest.mark.device
def test_every_kernel_compiles(kernels, tmp_path):
    assert len(kernels) >= 4 and errors(kernels, tmp_path) == {}


@pytest.mark.device
def test_they_need_the_extension(kernels, tmp_path):
    """Those that only read and write halves need it for nothing but that; all of these networks compute with them."""
    with_half = {name for name, code in kernels.items() if "half" in code and "_few" in code}
    assert with_half and with_half <= set(errors(kernels, tmp_path, "-Xclang", "-cl-ext=-cl_khr_fp16"))


@pytest.mark.device
def test_products_are_of_halves(kernels):
    """Registers for a few terms are halves, what they come to is float."""
    lines = [line.strip() for code in kernels.values() for line in code.splitlines() if "_few_ptr[" in line]
    declared = [line for line in lines if line.endswith("];") and "=" not in line]
    assert declared and all(re.match(r"half\d* ", line) for line in declared)


@pytest.mark.device
def test_a_broken_kernel_is_found(kernels, tmp_path):
    name = next(iter(kernels))
    broken = kernels | {name: kernels[name].replace("get_group_id(0)", "group_id(0)")}
    assert set(errors(broken, tmp_path)) == {name}


@pytest.mark.device
def test_buffers(tmp_path):
    assert errors(compiled(module(transformer, TOKENS), textures=False), tmp_path) == {}


def test_targets_without_half_are_told():
    with pytest.raises(UserError, match="'half' needs a target that computes in half, which 'opencl'"):
        sm.compile(module(transformer, TOKENS), parse_target("opencl"), sm.Options(precision="half"))
    with pytest.raises(UserError, match="'half-storage' needs a target that stores half numbers"):
        sm.compile(module(transformer, TOKENS), options=sm.Options(precision="half-storage"))
    with pytest.raises(UserError, match="precision 'double' does not exist"):
        sm.compile(module(transformer, TOKENS), options=sm.Options(precision="double"))


@pytest.mark.device
@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize("textures", [True, False])
def test_products_go_in_vectors_and_are_not_rounded(device, textures):
    """What clang makes of them: inside of a loop of products no sum is rounded, and each few sums are widened once.

    The first convolution rounds what it loads, as the network's input is in float32.
    """
    for build, shape in NETWORKS.values():
        kernels = compiled(module(build, shape), device, textures=textures)
        loops = [
            loop
            for name, code in COUNTS["llvm_of"](kernels).items()
            for loop in COUNTS["kernel_counts"](code, name).loops
            if loop.half_products >= COUNTS["FEWEST"]
        ]
        assert loops and all(loop.widened <= loop.single for loop in loops)
        assert all(loop.rounded <= loop.moved["load", "global", "float", 1] for loop in loops)
    source = "".join(kernels.values())
    assert re.search(r"half[48] \w+_few_ptr\[", source)
    assert textures or "half8" in source


@pytest.mark.device
@pytest.mark.slow
@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize("network", ["swin_t", "vit_b16", "convnext_t", "resnext50", "bert_base"])
def test_every_kernel_of_a_network_compiles(network, device, tmp_path):
    kernels = compiled(sm.from_onnx(MODELS / f"{network}.onnx"), device)
    assert len(kernels) > 10 and errors(kernels, tmp_path) == {}
    assert sum("_few" in code for code in kernels.values()) > 5
