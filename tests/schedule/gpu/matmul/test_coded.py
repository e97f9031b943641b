# SPDX-License-Identifier: Apache-2.0
"""Products with weights in codes on GPUs: right for all forms of files, and read as words."""

import numpy as np
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import ir, te, tirx

import smartmem_tvm as sm
from coded_weights import dequantized, nbits
from cuda_on_cpu import run, source_of
from smartmem_tvm.ir.graph import private_calls, read_log
from smartmem_tvm.pipeline import graph_phases, lower_phases, run_phases
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.schedule.gpu.gemm.unpacking import Unpacking
from smartmem_tvm.target import parse_target

_FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
CUDA = tvm.target.Target({**_FACTS, "arch": "sm_80"}, host="llvm")


def check(drawn, random, target="opencl", precision="float32"):
    """Compile and compare with float64; returns the compiled model."""
    built = sm.compile(sm.from_onnx(drawn.model), parse_target(target), sm.Options(precision=precision))
    x = (random.standard_normal(drawn.shape) + random.choice([0, 3])).astype("float32")
    exact = drawn.exact(x)
    (y,) = built.run(x)
    assert y.shape == exact.shape
    near = 3e-6 if precision == "float32" else 2e-3
    np.testing.assert_allclose(y, exact, rtol=0, atol=near * np.abs(exact).max())
    return built


def rules(built) -> set[str]:
    return {each["name"] for each in built.rules.values()}


def types(built) -> list[str]:
    return [str(each.tensor.dtype) for each in built.weights]


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_random_products(seed):
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    sizes = pick(1, 2, 3, 5, 8, 9), pick(67, 128, 257, 160), pick(64, 67, 127, 200)
    bits, zeros, target = pick(4, 8), pick(False, True), pick("opencl", "opencl-texture")
    if random.random() < 0.4:
        drawn = nbits(random, *sizes, pick(16, 32, 64, 128, 256), bits, zeros, pick(False, True))
    else:
        sides = {"signed": pick(False, True), "left": pick(False, True), "turned": pick(False, True)}
        drawn = dequantized(random, *sizes, pick("tensor", "axis", 16, 32, 40, 256), bits, zeros=zeros, **sides)
    built = check(drawn, random, target, pick("float32", "half-storage"))
    assert rules(built) == {"GpuCoded" if sizes[0] <= 8 else "GpuMatmul"} and "int32" in types(built)


@pytest.mark.parametrize(("bits", "zeros", "wanted"), [(4, True, "int8"), (8, True, "int16"), (8, False, None)])
def test_bytes_of_the_weights(bits, zeros, wanted):
    built = check(nbits(random := np.random.default_rng(0), 1, 160, 96, 32, bits, zeros), random)
    assert types(built) == ["int32", "float32", *([wanted] if wanted else [])]
    assert built.weights[0].tensor.numpy().nbytes == 160 * 96 * bits // 8


def test_two_products_of_parts_of_one_weight():
    """A gated layer, whose products were merged: each reads its half of one constant."""
    random, depth, columns = np.random.default_rng(0), 64, 96
    weights = [random.standard_normal((depth, columns)).astype("float32") for _ in range(2)]
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"y{n}"]) for n in range(2)]
    nodes += [helper.make_node("Sigmoid", ["y0"], ["s"]), helper.make_node("Mul", ["s", "y1"], ["y"])]
    info = [helper.make_tensor_value_info(name, 1, (1, size)) for name, size in (("x", depth), ("y", columns))]
    stored = [helper.make_tensor(f"w{n}", 1, each.shape, each.ravel()) for n, each in enumerate(weights)]
    model = helper.make_model(helper.make_graph(nodes, "gated", info[:1], info[1:], stored), ir_version=10)
    options = {"target": parse_target("opencl"), "options": sm.Options(weights="int8")}
    built = sm.compile(sm.from_onnx(model), **options)
    x = random.standard_normal((1, depth)).astype("float32")
    gate, up = (x.astype("float64") @ each for each in weights)
    exact = up / (1 + np.exp(-gate))
    assert np.abs(built.run(x)[0] - exact).max() < 0.02 * np.abs(exact).max()
    assert types(built).count("int32") == 2 and "int8" not in types(built)


def run_cuda(drawn, x, folder, precision="float32", decisions=None):
    """Return the result of a model's only kernel for CUDA, run on a CPU, its source, and its rule."""
    options = sm.Options(precision=precision)
    with CUDA:
        mod = run_phases(sm.from_onnx(drawn.model), graph_phases(CUDA), options)
        ((gvar, (call,)),) = private_calls(mod).items()
        if decisions:
            mod[gvar] = mod[gvar].with_attr(DECISIONS, decisions)
        func = run_phases(mod, lower_phases(CUDA)[:1], options)[gvar.name_hint].with_attr("global_symbol", "main")
    values = [each.value.numpy() if isinstance(each, ir.Constant) else x for each in call.args[1].fields]
    out = np.full((x.shape[0], drawn.weight.shape[1]), np.nan, "float32")
    run(func, CUDA, dict(zip([each.name for each in func.params], [*values, out], strict=True)), folder)
    return out, source_of(func, CUDA)[0], str(func.attrs["smartmem.rule"]["name"])


@pytest.mark.parametrize(
    ("rows", "precision", "rule"), [(2, "float32", "GpuCoded"), (3, "half", "GpuCoded"), (17, "half", "GpuMatrix")]
)
def test_cuda(rows, precision, rule, tmp_path):
    """The source for CUDA, run on a CPU: words are copied in vectors, and become numbers without conversions."""
    random = np.random.default_rng(0)
    drawn = nbits(random, rows, 160, 64, 32, zeros=rows == 2)
    x = random.standard_normal(drawn.shape).astype("float32")
    out, source, found = run_cuda(drawn, x, tmp_path, precision)
    exact = drawn.exact(x)
    near = 3e-6 if precision == "float32" else 2e-3
    np.testing.assert_allclose(out, exact, rtol=0, atol=near * np.abs(exact).max())
    copied = "shared_global_16(" in source if rule == "GpuCoded" else "*(int4*)(A_ptr" in source
    assert found == rule and copied and "(float)words" not in source


@pytest.mark.device
@pytest.mark.parametrize(("columns", "slices", "words"), [(32, 1, 1), (16, 2, 4), (64, 8, 2), (128, 4, 1), (32, 5, 4)])
def test_other_tiles(columns, slices, words, tmp_path):
    random = np.random.default_rng(0)
    drawn = nbits(random, 3, 160, 96, 32, zeros=True)
    x = random.standard_normal(drawn.shape).astype("float32")
    decisions = {"gpu_coded.columns": columns, "gpu_coded.slices": slices, "gpu_coded.words": words}
    out, source, _ = run_cuda(drawn, x, tmp_path, decisions=decisions)
    exact = drawn.exact(x)
    np.testing.assert_allclose(out, exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert f"__launch_bounds__({columns // 4 * slices})" in source


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("zero", "unit"), [(0, 1), (8, 1 / 16), (128, 1 / 256)])
def test_each_code_becomes_its_number(bits, dtype, zero, unit):
    """All codes at all places of a word, the others drawn, also with the sign bit."""
    many, unpacking = 32 // bits, Unpacking(bits, dtype, zero, unit)
    codes = np.random.default_rng(0).integers(0, 1 << bits, (many << bits, many))
    for t in range(many):
        codes[t << bits : t + 1 << bits, t] = np.arange(1 << bits)
    shifted = codes.astype("uint32") << np.arange(0, 32, bits, dtype="uint32")
    words = np.bitwise_or.reduce(shifted, 1).view("int32")
    read = te.placeholder(words.shape, "int32", "words")

    def found(t: int):
        return te.compute(words.shape, lambda i: unpacking.number(read[i], t), f"code{t}")

    built = tvm.compile(te.create_prim_func([read, *map(found, range(many))]), "llvm")
    results = [np.empty(words.shape, dtype) for _ in range(many)]
    tensors = [tvm.runtime.tensor(each) for each in (words, *results)]
    built(*tensors)
    got = np.stack([each.numpy() for each in tensors[1:]], 1).astype("float64")
    np.testing.assert_array_equal(got, (codes - zero) * unit)


def test_halves_of_phones_are_vectors():
    """On a phone in half precision four codes are a vector of halves, and no code is converted."""
    target = parse_target("adreno-740")
    drawn = nbits(np.random.default_rng(0), 2, 128, 64, 32)
    with target:
        mod = run_phases(sm.from_onnx(drawn.model), graph_phases(target), sm.Options(precision="half"))
        mod = run_phases(mod, lower_phases(target)[:1], sm.Options(precision="half"))
    (func,) = (each for _, each in mod.functions_items() if isinstance(each, tirx.PrimFunc))
    text = str(func)
    assert 'T.reinterpret("float16"' in text and "T.vectorized(T.int64(4))" in text


def test_scales_near_zero_stay_float32():
    drawn = nbits(np.random.default_rng(0), 1, 128, 64, 32)
    (scales,) = (each for each in drawn.model.graph.initializer if each.name == "s")
    scales.CopyFrom(numpy_helper.from_array(np.full((64, 4), 1e-6, "float32"), "s"))
    with parse_target("opencl"):
        mod = run_phases(
            sm.from_onnx(drawn.model), graph_phases(parse_target("opencl")), sm.Options(precision="half-storage")
        )
    entries = [each for each in read_log(mod) if each["pass"] == "StoreHalf" and "scales" in each.get("reason", "")]
    assert len(entries) == 1
