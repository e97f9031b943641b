# SPDX-License-Identifier: Apache-2.0
"""Any inputs and attributes of the operators that have many, beside ONNX Runtime."""

import pytest
from onnx import helper

from against_onnxruntime import RUNTIME, check
from contrib_draws import KINDS, Draw
from covering import seeds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", seeds(2, 8, 20))
def test_drawn_at_random(kind, seed):
    drawn = kind(Draw(seed))
    names = ["" if array is None else name for name, array in drawn.inputs.items()]
    outputs = [name.strip() for name in drawn.results]
    node = helper.make_node(drawn.op, names, outputs, domain=RUNTIME, **drawn.attributes)
    given = {name: array for name, array in drawn.inputs.items() if array is not None}
    known = {name: given.pop(name) for name in drawn.known if name in given}
    results = {name: dtype for name, dtype in drawn.results.items() if dtype}
    check([node], given, results, known, tolerance=drawn.tolerance, threads=1, least=1e-3)
