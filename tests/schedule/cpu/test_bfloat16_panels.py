# SPDX-License-Identifier: Apache-2.0
"""Attention whose products are of numbers rounded to bfloat16: the instructions, and the numbers."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from attention_expressions import attention, causal_attention, merged_attention
from smartmem_tvm.cpu_features import has_tiles
from smartmem_tvm.deploy.cpu_build import build_kernels
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.schedule import RoundProducts, ScheduleKernels
from smartmem_tvm.target import host_target

TILES = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
PLAIN = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def finished(inputs, out, reference):
    residual = te.placeholder(out.shape, name="r")
    output = te.compute(out.shape, lambda *at: out[at] * tirx.const(0.5, "float32") + residual[at], name="sum")
    return [*inputs, residual], output, lambda *arrays: reference(*arrays[:-1]) * 0.5 + arrays[-1]


CASES = {
    "a window": attention(3, 49, 49, 32, 32, True),
    "the last block begins early": attention(2, 197, 197, 64, 64, False),
    "other keys than rows": attention(1, 128, 77, 40, 40, True),
    "nothing divides anything": attention(2, 23, 17, 19, 37, False),
    "one more than tiles": attention(2, 33, 65, 33, 17, True),
    "a mask": causal_attention(2, 30, 16, -1e9),
    "heads side by side": merged_attention(2, 3, 21, 16),
    "a sum after it": finished(*attention(2, 20, 24, 16, 16, False)),
}


def rounded(case: str) -> tvm.IRModule:
    inputs, output, _ = CASES[case]
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    with TILES:
        return RoundProducts()(tvm.IRModule({"main": func}))


def result(library, case: str) -> tuple[np.ndarray, np.ndarray]:
    inputs, output, reference = CASES[case]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(d) for d in each.shape]).astype(str(each.dtype)) for each in inputs]
    out = tvm.runtime.tensor(np.full([int(d) for d in output.shape], 7, "float32"))
    library["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy(), reference(*arrays).reshape(out.shape)


@pytest.mark.parametrize("case", CASES)
def test_attention(case):
    mod = rounded(case)
    assert [entry["multiplied"] for entry in read_log(mod)] == ["bfloat16"]
    with TILES:
        tiles = build_kernels(ScheduleKernels()(mod), TILES)
    assert {each for each in ("ldtilecfg", "tdpbf16ps", "tilerelease") if each in tiles.inspect_source("asm")} == {
        "ldtilecfg",
        "tdpbf16ps",
        "tilerelease",
    }
    # On any other processor the kernel means the same.
    with PLAIN:
        libraries = [build_kernels(ScheduleKernels()(mod), PLAIN), *([tiles] if has_tiles(host_target()) else [])]
    for library in libraries:
        found, want = result(library, case)
        np.testing.assert_allclose(found, want, atol=2e-2 * np.abs(want).max(), rtol=0)


def test_what_is_smaller_than_tiles_stays_in_float32():
    CASES["small"] = attention(2, 13, 11, 8, 8, False)
    (entry,) = read_log(rounded("small"))
    assert entry["multiplied"] == "float32" and entry["reason"] == "its products are smaller than tiles"
