# SPDX-License-Identifier: Apache-2.0
"""CPUs that multiply bfloat16 numbers are recognised, and the message for those that do not."""

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm as sm
from smartmem_tvm import UserError
from smartmem_tvm.cpu_features import has_byte_tiles, has_fma, has_tiles, require_tiles, unnamed_features
from smartmem_tvm.graph_report import explain
from smartmem_tvm.requirements import require_precision
from smartmem_tvm.target import host_target

LINUX = frozenset({"avx512f", "amx_tile", "amx_bf16", "avx512_bf16"})


def cpu(name: str, **more) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": name, **more})


@pytest.mark.parametrize(
    "target, tiles",
    [
        (cpu("sapphirerapids"), True),
        (cpu("graniterapids"), True),
        (cpu("znver5"), False),  # AVX512_BF16, no tiles
        (cpu("haswell"), False),
        (cpu("rocketlake", mattr=["+amx-tile", "+amx-bf16", "+avx512bf16"]), True),
        (cpu("sapphirerapids", mtriple="x86_64-pc-windows-msvc"), False),
        (cpu("sapphirerapids", mtriple="x86_64-unknown-linux-gnu"), True),
    ],
)
def test_cpus_with_tiles(target, tiles):
    assert has_tiles(target) is tiles
    if tiles:
        require_precision(target, "bfloat16")
    else:
        with pytest.raises(
            UserError, match=r"precision 'bfloat16' needs a CPU that multiplies .* compile for one that"
        ):
            require_precision(target, "bfloat16")


@pytest.mark.parametrize(
    "target, tiles",
    [
        (cpu("sapphirerapids"), True),
        (cpu("znver5"), False),  # VNNI, no tiles
        (cpu("rocketlake", mattr=["+amx-tile", "+amx-int8"]), True),
        (cpu("rocketlake", mattr=["+amx-tile", "+amx-bf16"]), False),
        (cpu("sapphirerapids", mtriple="x86_64-pc-windows-msvc"), False),
    ],
)
def test_cpus_with_tiles_of_bytes(target, tiles):
    assert has_byte_tiles(target) is tiles


@pytest.mark.parametrize("target", [None, tvm.target.Target("opencl", host="llvm")])
def test_no_cpu_is_refused(target):
    with pytest.raises(UserError, match="or in float32"):
        require_tiles(target)


def test_what_the_name_of_a_cpu_leaves_out():
    """A virtual machine may report the model of another CPU, and have fewer instructions than it."""
    assert unnamed_features("rocketlake", LINUX) == ["+amx-tile", "+amx-bf16", "+avx512bf16"]
    assert unnamed_features("sapphirerapids", LINUX) == []
    assert unnamed_features("rocketlake", LINUX - {"amx_bf16"}) == []
    assert unnamed_features("rocketlake", LINUX | {"amx_int8"})[-1] == "+amx-int8"
    assert unnamed_features("rocketlake", frozenset({"amx_tile", "amx_int8"})) == ["+amx-tile", "+amx-int8"]
    assert unnamed_features("sapphirerapids", LINUX | {"amx_int8"}) == []


def perceptron(weight: np.ndarray) -> tvm.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((70, weight.shape[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight))))
            result = builder.emit_output(relax.op.matmul(hidden, relax.const(weight.T.copy())))
        builder.emit_func_output(result)
    return builder.get()


def test_this_machine_compiles_or_says_why_not():
    rng, target = np.random.default_rng(0), host_target()
    weight, x = (rng.standard_normal(shape).astype("float32") for shape in ((96, 301), (70, 96)))
    options = sm.Options(precision="bfloat16", check="outputs")
    if not has_tiles(target):
        with pytest.raises(UserError, match="needs a CPU that multiplies bfloat16 numbers"):
            sm.compile(perceptron(weight), target, options)
        return
    made = sm.compile(perceptron(weight), target, options)
    want = np.maximum(x @ weight, 0) @ weight.T
    np.testing.assert_allclose(made.run(x)[0], want, atol=1e-2 * np.abs(want).max(), rtol=0)
    assert {rule["name"] for rule in made.rules.values()} == {"Bfloat16Product"}
    said = [entry for entry in explain(made.graph)["decisions"] if entry["pass"] == "RoundProducts"]
    assert [entry["multiplied"] for entry in said] == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize(
    ("target", "has"),
    [
        ({"kind": "llvm", "mcpu": "haswell"}, True),
        ({"kind": "llvm", "mcpu": "skylake-avx512"}, True),
        ({"kind": "llvm", "mcpu": "core2"}, False),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, True),
    ],
)
def test_which_processors_multiply_and_add_with_one_rounding(target, has):
    assert has_fma(tvm.target.Target(target)) is has
