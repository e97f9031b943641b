# SPDX-License-Identifier: Apache-2.0
"""Operators of integers through OpenCL equal ONNX Runtime to the bit, in floats and four bytes at once."""

import pytest
from tvm import tirx

import smartmem_tvm.target
from drawn_integers import differences
from smartmem_tvm import pipeline
from smartmem_tvm.schedule.gpu.gemm import byte_product
from smartmem_tvm.target import parse_target

FEW, MORE = (0, 1, 2, 4, 5), range(6, 60)
ZERO_POINTS = (
    1148  # of two tensors of data, with a depth that tiles do not divide: TVM's rule added those of its padding
)


def emulated(unsigned_left, unsigned_right):
    """The function of cl_khr_integer_dot_product, which PoCL does not have, as an expression."""

    def byte(word, n, unsigned):
        shifted = tirx.reinterpret("int32", word) << tirx.const(24 - 8 * n, "int32")
        signed = shifted >> tirx.const(24, "int32")
        return signed & tirx.const(255, "int32") if unsigned else signed

    def dot(left, right):
        parts = [byte(left, n, unsigned_left) * byte(right, n, unsigned_right) for n in range(4)]
        return parts[0] + parts[1] + parts[2] + parts[3]

    return dot


@pytest.fixture
def dots(monkeypatch):
    """OpenCL devices multiply four bytes at once; the numbers of multiplications so emitted."""
    made = []

    def call(dtype, name, *words):
        made.append(name)
        kinds = name.removeprefix("dot_4x8packed_")[:2]
        return tirx.reinterpret(dtype, emulated(*(kind == "u" for kind in kinds))(*words))

    for module in (smartmem_tvm.target, pipeline):
        monkeypatch.setattr(module, "has_byte_dots", lambda target: True)
    monkeypatch.setattr(byte_product, "_dot", call)
    return made


@pytest.mark.parametrize("seed", (*FEW, ZERO_POINTS))
def test_any_attribute(seed):
    assert differences(seed, parse_target("opencl"))[1] == 0


@pytest.mark.device
@pytest.mark.parametrize("seed", MORE)
def test_more_attributes(seed):
    assert differences(seed, parse_target("opencl"))[1] == 0


@pytest.mark.parametrize("seed", FEW[:3])
def test_four_bytes_at_once(seed, dots):
    assert differences(seed, parse_target("opencl"))[1] == 0
    assert dots


@pytest.mark.device
@pytest.mark.parametrize("seed", MORE)
def test_more_attributes_of_four_bytes_at_once(seed, dots):
    assert differences(seed, parse_target("opencl"))[1] == 0
