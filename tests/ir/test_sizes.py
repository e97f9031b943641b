# SPDX-License-Identifier: Apache-2.0
"""What tensors take in memory."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from smartmem_tvm.ir.sizes import data_bytes, number_bytes


@pytest.mark.parametrize(("dtype", "size"), [("bool", 1), ("int4", 1), ("int8", 1), ("bfloat16", 2), ("float64", 8)])
def test_numbers(dtype, size):
    assert number_bytes(dtype) == size


def test_tensors():
    assert data_bytes(tvm.runtime.tensor(np.zeros((3, 5), "float16"))) == 30
    assert data_bytes(tvm.runtime.tensor(np.zeros((), "int64"))) == 8
    assert data_bytes(relax.TensorType((7, 2), "float32")) == 56
    assert data_bytes(relax.TensorType((0, 2), "float32")) == 0
    assert data_bytes(relax.TensorType((3,), "bool")) == 3
    assert data_bytes(tirx.decl_buffer((3, 5), "bfloat16")) == 30


def test_tuples():
    inner = relax.TupleType([relax.TensorType((3, 5), "float16"), relax.TensorType((), "int64")])
    assert data_bytes(inner) == 38
    assert data_bytes(relax.TupleType([inner, relax.TensorType((7, 2), "float32"), inner])) == 132


def test_what_is_not_known_takes_nothing():
    assert data_bytes(relax.TensorType((tirx.Var("n", "int64"), 2), "float32")) == 0
    assert data_bytes(relax.TensorType(None, "float32", ndim=2)) == 0
    assert data_bytes(relax.ShapeType(ndim=2)) == 0
