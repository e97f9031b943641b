# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, integers, model_of
from smartmem_tvm.frontend.converters.contrib_bits import _CODES

F = "float32"
INDICES = [np.array([[1, 4], [0, -2]]), np.array([7, 2, 3], "int32"), np.array(3)]


def _floats(random, *shape):
    return random.standard_normal(shape).astype(F)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("columns", "width", "block"), [(6, 32, 16), (5, 30, 16), (8, 64, 64)])
def test_products_with_codes_of_four_bits(kind, columns, width, block):
    random = np.random.default_rng(0)
    given = {"b": integers(random, "uint8", ((columns * width + 1) // 2,))}
    given["m"] = (random.random(-(-columns * width // block)) + 0.1).astype(F)
    options = {"quant_type": kind, "N": columns, "K": width, "block_size": block}
    check_contrib("MatMulBnb4", {"a": _floats(random, 3, width)}, {"y": F}, given, **options)
    # By its definition: ONNX Runtime's kernel on a CPU does not look at transB.
    codes = np.stack([given["b"] >> 4, given["b"] & 15], 1).ravel()[: columns * width]
    values = (_CODES[kind][codes] * np.repeat(given["m"], block)[: columns * width]).reshape(columns, width)
    a = _floats(random, 3, columns)
    check_contrib("MatMulBnb4", {"a": a}, {"y": F}, given, wanted=[a @ values], transB=0, **options)


@pytest.mark.each_value
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("width", [64, 40])
def test_rows_of_packed_numbers(bits, zeros, width):
    random, blocks, each = np.random.default_rng(0), -(-width // 16), 8 // bits
    given = {"d": integers(random, "uint8", (8, width // each)), "s": _floats(random, 8, blocks)}
    given |= {"z": integers(random, "uint8", (8, -(-blocks // each)))} if zeros else {}
    options = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    for indices in INDICES:
        names = "d i s z" if zeros else "d i s"
        check_contrib("GatherBlockQuantized", {"i": indices}, {"y": F}, given, names, **options)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize(("axis", "along"), [(0, 1), (0, 2), (1, 2), (1, 0), (2, 1), (1, 1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_numbers_of_four_bits_along_any_axes(dtype, axis, along, zeros):
    random, shape = np.random.default_rng(0), [5, 20, 36]
    scales = [-(-size // 16) if at == along else size for at, size in enumerate(shape)]
    given = {"d": integers(random, dtype, tuple(shape)), "s": _floats(random, *scales)}
    given |= {"z": integers(random, dtype, tuple(scales))} if zeros else {}
    options = {"block_size": 16, "gather_axis": axis, "quantize_axis": along}
    check_contrib(
        "GatherBlockQuantized", {"i": INDICES[0]}, {"y": F}, given, "d i s z" if zeros else "d i s", **options
    )


def test_an_index_beyond_the_axis_gives_zeros():
    random = np.random.default_rng(0)
    given = {"d": integers(random, "uint8", (8, 16)), "s": _floats(random, 8, 1)}
    values = (given["d"].astype(F) - 128) * given["s"]
    wanted = np.stack([values[1], np.zeros(16, F), np.zeros(16, F), values[0]])
    options = {"bits": 8, "block_size": 16}
    arrays = {"i": np.array([1, 8, -9, -8])}
    check_contrib("GatherBlockQuantized", arrays, {"y": F}, given, "d i s", wanted=[wanted], **options)


@pytest.mark.parametrize(
    ("attributes", "given", "reason"),
    [({"quant_type": 2}, "bm", "quant_type is 2"), ({"quant_type": 1}, "b", "run time only")],
)
def test_what_is_refused(attributes, given, reason):
    arrays = {"a": np.zeros((3, 32), F), "b": np.zeros(64, "uint8"), "m": np.ones(8, F)}
    options = {"N": 4, "K": 32, "block_size": 16, **attributes}
    node = helper.make_node("MatMulBnb4", ["a", "b", "m"], ["y"], "codes", domain=RUNTIME, **options)
    inputs = {name: array for name, array in arrays.items() if name not in given}
    model = model_of([node], inputs, {"y": (F, (3, 4))}, {name: arrays[name] for name in given})
    with pytest.raises(sm.UserError, match=rf"MatMulBnb4.*codes.*{reason}"):
        sm.from_onnx(model)
