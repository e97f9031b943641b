# SPDX-License-Identifier: Apache-2.0
"""Caches in the memory of an OpenCL device: rows are written there, and stay between runs."""

import numpy as np
import pytest

import smartmem_tvm as sm
from cache_updates import Update, expected


@pytest.mark.device
@pytest.mark.parametrize("update", [Update("where", (1, 3, 8, 4), 2, 1), Update("elements", (1, 3, 8, 4), 2, 2)])
def test_rows_are_written_on_the_device(update):
    session = sm.compile(sm.from_onnx(update.model()), "opencl", sm.Options(caches=True)).session()
    random = np.random.default_rng(0)
    past = np.zeros(update.shape, "float32")
    for _ in range(4):
        arrays = {**update.inputs(random), "past": past}
        total, past = expected(update.model(), arrays)
        (found,) = session.run(arrays["new"], arrays["rows"])
        np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(session.caches["past"].numpy(), past)
