# SPDX-License-Identifier: Apache-2.0
"""Products of rows in bytes and weights in codes: right for all forms, as ONNX Runtime has them, and exact sums."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import smartmem_tvm as sm
from coded_weights import dequantized, nbits
from smartmem_tvm.ir.packings import QUADS
from smartmem_tvm.schedule.cpu.packed_vectors import has_dot
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.target import host_target, parse_target

PROCESSORS = {"host": "cpu", "haswell": '{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}'}
AVX512BW = '{"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1}'
if CpuParams.of(host_target()).lanes == 16:
    PROCESSORS["avx512bw"] = AVX512BW


def asking(drawn) -> onnx.ModelProto:
    """Return the model, whose products ask for rows in bytes."""
    for node in drawn.model.graph.node:
        if node.op_type == "MatMulNBits":
            node.attribute.append(helper.make_attribute("accuracy_level", 4))
    return drawn.model


def in_bytes(x: np.ndarray, group: int) -> np.ndarray:
    """Return what rows become, in float64."""
    parts = x.reshape(*x.shape[:-1], -1, group).astype("float32")
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(parts * inverse).astype("float64") * scale).reshape(x.shape)


def compiled(model, target="cpu", **options):
    return sm.compile(sm.from_onnx(model), target, options=sm.Options(**options))


def rules(built) -> list[str]:
    return [each["name"] for each in built.rules.values()]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("seed", range(4))
def test_random_products(seed, processor):
    """Strips of rows, ends of columns, groups, zero points, both numbers of bits; one row has a group of zeros."""
    random = np.random.default_rng([seed, len(processor)])
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    group = pick(16, 32, 64, 128, 256)
    depth, rows, columns = group * pick(1, 2, 3, 5), pick(1, 2, 3, 5, 12, 13, 17, 40), pick(64, 65, 100, 200)
    depth += group * (depth * columns < 4096) * 8
    bits, dots = pick(4, 8), has_dot(QUADS.name, CpuParams.of(parse_target(PROCESSORS[processor])))
    rows = rows if dots or bits == 4 else 1 + rows % 3
    drawn = nbits(random, rows, depth, columns, group, bits, pick(False, True), pick(False, True))
    x = (random.standard_normal(drawn.shape) * pick(1e-3, 1, 100) + pick(0, 3)).astype("float32")
    x[..., 0, :group] = 0
    built = compiled(asking(drawn), PROCESSORS[processor])
    exact = drawn.exact(in_bytes(x, group))
    np.testing.assert_allclose(built.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert "CodedProduct" in rules(built)


@pytest.mark.parametrize("bits", [4, 8])
def test_as_close_as_onnx_runtime(bits):
    random = np.random.default_rng(bits)
    drawn = nbits(random, 5, 256, 96, 32, bits, True)
    model, x = asking(drawn), random.standard_normal(drawn.shape).astype("float32")
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    exact = drawn.exact(x)
    ours = compiled(model).run(x)[0]
    far = [np.abs(each - exact).max() / np.abs(exact).max() for each in (ours, theirs)]
    assert far[0] < 1.2 * far[1] + 1e-4
    floats = compiled(model, activations="float")
    assert rules(floats) == ["CodedProduct"]
    np.testing.assert_allclose(floats.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())


@pytest.mark.parametrize(("group", "bits"), [("tensor", 8), ("axis", 4), (40, 4), (256, 8)])
def test_weights_of_other_files_by_request(group, bits):
    """Groups of rows are those of the weight, 64 or 32; a weight may be transposed."""
    random = np.random.default_rng(bits)
    depth = 320 if group == 40 else 256
    drawn = dequantized(random, 3, depth, 100, group, bits, turned=group == 40)
    x = random.standard_normal(drawn.shape).astype("float32")
    exact = drawn.exact(in_bytes(x, 40 if group == 40 else 64))
    built = compiled(drawn.model, activations="int8")
    np.testing.assert_allclose(built.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert len(rules(built)) == 3


def test_a_check_of_outputs_compares_with_the_rounded_rows():
    drawn = nbits(np.random.default_rng(0), 2, 96, 64, 32)
    assert "codes_of_rows" in " ".join(compiled(asking(drawn), check="outputs").rules)


def test_rows_are_rounded_once_for_all_their_readers():
    random = np.random.default_rng(0)
    drawn = nbits(random, 3, 96, 96, 32)
    graph = asking(drawn).graph
    again = graph.node.add()
    again.CopyFrom(graph.node[0])
    again.output[0] = "z"
    graph.output.add().CopyFrom(graph.output[0])
    graph.output[1].name = "z"
    built = compiled(drawn.model)
    x = random.standard_normal((3, 96)).astype("float32")
    for y in built.run(x):
        exact = drawn.exact(in_bytes(x, 32))
        np.testing.assert_allclose(y, exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert sum("codes_of_rows" in name for name in built.rules) == 1


@pytest.mark.parametrize(
    ("depth", "target"), [(200, "cpu"), (256, '{"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}')]
)
def test_rows_that_stay_floats(depth, target):
    """No whole groups; no instruction."""
    random = np.random.default_rng(0)
    drawn = nbits(random, 2, depth, 64, 32)
    x = random.standard_normal(drawn.shape).astype("float32")
    exact = drawn.exact(x)
    built = compiled(asking(drawn), target)
    np.testing.assert_allclose(built.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert len(rules(built)) == 1


def test_what_activations_are_known():
    with pytest.raises(sm.UserError, match="'int4' do not exist: use stored, float, int8"):
        sm.Options(activations="int4")
