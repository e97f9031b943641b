# SPDX-License-Identifier: Apache-2.0
"""RoundFactors: which kernels are marked, and what becomes of bfloat16 and tf32 on GPUs with and without them."""

import re
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import smartmem_tvm as sm
from half_networks import NETWORKS
from helpers import module, nodes, op
from smartmem_tvm import Options, UserError, optimize
from smartmem_tvm.deploy.build import lower
from smartmem_tvm.deploy.cuda_math import with_declarations
from smartmem_tvm.deploy.gpu_build import _lower
from smartmem_tvm.deploy.textures import CUDA_PIPELINE
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import FACTORS
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.target import parse_target

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
NAMES = {"half": "f16", "bfloat16": "bf16", "tf32": "tf32"}
GPUS = ("sm_80", "sm_90a")


def target_of(arch):
    return tvm.target.Target({**FACTS, "arch": arch}, host="llvm")


def kernels_of(mod, arch, precision="float32"):
    """The graph of kernels, their rules, and their CUDA."""
    target, options = target_of(arch), Options(precision=precision)
    with target:
        graph = optimize(mod, options=options)
        lowered = lower(graph, target, options).module
    funcs = [(var, func) for var, func in lowered.functions_items() if isinstance(func, tirx.PrimFunc)]
    rules = [str(func.attrs["smartmem.rule"]["name"]) for _, func in funcs]
    named = tvm.IRModule({var: func.with_attr("global_symbol", var.name_hint) for var, func in funcs})
    _, parts = _lower(named, target, CUDA_PIPELINE)
    build = tvm.get_global_func("target.build.cuda")
    return graph, rules, "\n".join(build(part, target).inspect_source() for part in parts)


def instructions(source) -> set:
    """Types that the source's matrix instructions multiply."""
    return set(re.findall(r"(?:mma\.sync|wgmma\.mma_async)[\w.]*\.f32\.(\w+)\.\w+(?:\.f32)? ", source))


def said(graph) -> list:
    return [entry for entry in read_log(graph) if entry["pass"] == "RoundFactors"]


@pytest.mark.each_value
@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("precision", NAMES)
def test_products_of_a_transformer_have_matrix_instructions(precision, arch):
    build, shape = NETWORKS["transformer"]
    _, rules, source = kernels_of(module(build, shape), arch, precision)
    assert instructions(source) == {NAMES[precision]} and rules.count("GpuMatrix") == 3


@pytest.mark.device
@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("precision", NAMES)
def test_convolutions_have_them_too(precision, arch):
    build, shape = NETWORKS["convolutions"]
    _, rules, source = kernels_of(module(build, shape), arch, precision)
    assert instructions(source) == {NAMES[precision]} and "GpuMatrix" in rules


def transformer(dtype):
    """One that comes in a type of 16 bits: weights, inputs and arithmetic."""
    number = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16

    def weight(*shape, seed=0):
        numbers = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])
        return relax.const(numbers.astype(number), dtype)

    def build(x):
        y = op.nn.gelu(op.add(op.matmul(x, weight(64, 96)), weight(96)))
        z = op.nn.softmax(op.matmul(y, weight(96, 48, seed=1)))
        return op.add(x, op.matmul(z, weight(48, 64, seed=2)))

    return module(build, ((2, 40, 64), dtype))


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize(("dtype", "name"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_a_model_of_16_bits_is_compiled_as_what_it_is(dtype, name, arch):
    graph, _, source = kernels_of(transformer(dtype), arch)
    assert instructions(source) == {name} and not said(graph)


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_older_gpus_compute_in_float32_and_say_so(precision):
    build, shape = NETWORKS["transformer"]
    graph, rules, source = kernels_of(module(build, shape), "sm_75", precision)
    assert not instructions(source) and "bfloat16" not in source and "GpuMatmul" in rules
    (entry,) = said(graph)
    assert entry["reason"] == "matrix instructions for it begin with compute capability 8.0, and this is 7.5"
    plain, *_ = kernels_of(module(build, shape), "sm_75")
    assert len(nodes(graph)) == len(nodes(plain))


def test_kernels_without_products_are_not_marked():
    with target_of("sm_80"):
        graph = optimize(module(lambda x: op.nn.softmax(op.nn.relu(x)), (8, 64)), options=Options(precision="tf32"))
    assert not said(graph) and not any(node.attrs for node in nodes(graph))
    weight = relax.const(np.ones((64, 64), "float32"))
    with target_of("sm_80"):
        graph = optimize(module(lambda x: op.matmul(x, weight), (64, 64)), options=Options(precision="tf32"))
    assert [node.attrs for node in nodes(graph)] == [{FACTORS: "tf32"}] and said(graph)[0]["multiplied"] == "tf32"


def test_the_mark_stays_when_kernels_are_written_again():
    weight = relax.const(np.ones((64, 64), "float32"))
    options = Options(precision="tf32", layout="fluid")
    with target_of("sm_80"):
        graph = optimize(module(lambda x: op.nn.softmax(op.matmul(x, weight)), (64, 64)), options=options)
    assert any(node.attrs.get(FACTORS) == "tf32" for node in nodes(graph))


@pytest.mark.parametrize(
    ("name", "precision"),
    [("cpu", "tf32"), *((name, each) for name in ("opencl", "adreno-740") for each in ("bfloat16", "tf32"))],
)
def test_targets_that_are_not_cuda_are_refused(name, precision):
    """CPUs have a bfloat16 of their own, or refuse it with their own sentence."""
    with pytest.raises(UserError, match=f"precision '{precision}' is made of NVIDIA's matrix instructions"):
        sm.compile(module(op.nn.relu, (4, 4)), parse_target(name), Options(precision=precision))


def test_the_pass_takes_two_types():
    assert make_pass("round-factors", own={"kind": "tf32"}).kind == "tf32"
    with pytest.raises(UserError, match="does not round to 'float8'"):
        make_pass("round-factors", own={"kind": "float8"})


@pytest.mark.device
@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("precision", NAMES)
def test_nvidia_s_compiler_takes_them(precision, arch, tmp_path):
    """Where there is one; without, the names of instructions in the source are what is known."""
    build, shape = NETWORKS["transformer"]
    *_, source = kernels_of(module(build, shape), arch, precision)
    assert instructions(source) == {NAMES[precision]}
    if shutil.which("nvcc"):
        (tmp_path / "kernels.cu").write_text(with_declarations(source))
        command = ["nvcc", f"-arch={arch}", "--use_fast_math", "-w", "-cubin", "kernels.cu"]
        subprocess.run(command, cwd=tmp_path, check=True)
