# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from smartmem_tvm import narrow

NARROW = ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"]


@pytest.mark.parametrize("dtype", NARROW)
def test_arrays_survive_the_way_to_bytes_and_back(dtype):
    array = np.arange(4, dtype="uint8").astype(dtype)
    kept = narrow.to_bytes(array)
    assert str(kept.dtype) == narrow.storage_of(dtype) in ("int8", "uint8")
    back = narrow.from_bytes(kept, dtype)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.view("uint8"), array.view("uint8"))


def test_negative_integers_are_kept_as_values():
    np.testing.assert_array_equal(narrow.to_bytes(np.array([-8, -1], "int8").astype("int4")), [-8, -1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_other_arrays_are_kept_as_they_are(dtype):
    array = np.zeros(3, dtype)
    assert narrow.to_bytes(array) is array
    assert narrow.from_bytes(array, dtype) is array


def test_limits():
    assert narrow.limits("int4") == (-8, 7)
    assert narrow.limits("uint16") == (0, 65535)
