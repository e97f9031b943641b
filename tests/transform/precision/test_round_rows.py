# SPDX-License-Identifier: Apache-2.0
"""RoundRows: which rows become bytes, and why others stay floats."""

import numpy as np
import onnx
import pytest
import tvm

import smartmem_tvm as sm
from coded_weights import nbits
from helpers import operators
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import RoundRows, StoreCodes

VNNI, AVX2, SSE = ({"kind": "llvm", "mcpu": cpu} for cpu in ("cascadelake", "haswell", "x86-64"))


def asking(level=4, rows=3, depth=96, bits=4):
    """Return a module of one product whose file gives `level`."""
    drawn = nbits(np.random.default_rng(0), rows, depth, 64, 32, bits)
    drawn.model.graph.node[0].attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    return StoreCodes()(sm.from_onnx(drawn.model))


def rounded(mod, target=VNNI, activations="stored"):
    with tvm.target.Target(target):
        return RoundRows(activations)(mod)


def kernels(mod) -> list[str]:
    return [gvar.name_hint for gvar in mod.get_global_vars() if isinstance(mod[gvar], tvm.tirx.PrimFunc)]


@pytest.mark.parametrize(("level", "activations"), [(4, "stored"), (0, "int8")])
def test_before_and_after(level, activations):
    before = asking(level)
    after = rounded(before, activations=activations)
    assert operators(before).count("matmul") == operators(after).count("matmul") == 1
    wanted = {"scales_of_rows", "codes_of_rows", "dequantize_rows", "dequantize_weight"}
    assert {name.rstrip("0123456789") for name in kernels(after)} == wanted
    (entry,) = (each for each in read_log(after) if each["pass"] == "RoundRows")
    assert entry["action"] == "rounded to 8 bits" and entry["group"] == 32


@pytest.mark.parametrize(
    ("target", "activations", "given", "reason"),
    [
        (SSE, "stored", {}, "multiplies no bytes"),
        ({"kind": "cuda", "arch": "sm_80"}, "stored", {}, "multiplies no bytes"),
        (VNNI, "float", {}, "by request"),
        (VNNI, "stored", {"depth": 104}, "no groups of 32"),
        (AVX2, "stored", {"bits": 8, "rows": 4}, "no faster in integers"),
        (VNNI, "stored", {"bits": 8, "rows": 4}, None),
        (AVX2, "stored", {"bits": 8}, None),
        (AVX2, "stored", {"rows": 40}, None),
    ],
)
def test_rows_that_stay_floats(target, activations, given, reason):
    after = rounded(asking(**given), target, activations)
    (entry,) = (each for each in read_log(after) if each["pass"] == "RoundRows")
    assert (reason is None and "reason" not in entry) or reason in entry["reason"]
    assert not any("rows_in_bytes" in name for name in kernels(after))


def test_rows_of_files_that_do_not_ask():
    before = asking(level=0)
    assert rounded(before).get_global_vars() == before.get_global_vars()
