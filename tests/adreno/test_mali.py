# SPDX-License-Identifier: Apache-2.0
"""A kernel for Mali as Mesa's compiler makes it, where it is set up (``smartmem isa --setup --target mali-g57``)."""

from pathlib import Path

import pytest

from smartmem_tvm.mesa_folder import MALI, mesa_problem
from smartmem_tvm.target import parse_target, target_row
from smartmem_tvm.tools.isa.compiler import FOLDER_VARIABLE, compile_all
from smartmem_tvm.tools.isa.kernels import KernelCode

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(mesa_problem(MALI) is not None, reason=f"{mesa_problem(MALI)}"),
]
SAMPLES = Path(__file__).parents[1] / "tools" / "isa" / "samples"
ROW = target_row(parse_target("mali-g57"))


@pytest.mark.parametrize("gpu", ["G57", "G76"])
def test_a_kernel_an_equal_one_and_one_that_is_refused(gpu, tmp_path, monkeypatch):
    """Equal code of another program is compiled again, as Mesa prints nothing of what it has."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    source = (SAMPLES / "mali.cl").read_text(encoding="utf-8")
    bad = "__kernel void bad(__global float* x) { x[0] = nonsense; }"
    found = compile_all({"loop": source, "same": f"// same\n{source}", "bad": bad}, gpu)
    assert "nonsense" in found["bad"].refused
    data = [KernelCode.of(name, source, found[name]).as_dict(ROW) for name in ("loop", "same")]
    assert data[0]["registers"] <= 32 and data[0]["spills"] == 0 and data[0]["classes"] == data[1]["classes"]
