# SPDX-License-Identifier: Apache-2.0
"""A compiled model keeps the plan of each kernel, and the code generator sees none."""

import pytest
import tvm
from tvm import relax, tirx

from helpers import constant, module
from smartmem_tvm import Options, compile
from smartmem_tvm.deploy import build
from smartmem_tvm.schedule.core.plans import PLAN


def two_layers() -> tvm.IRModule:
    """A convolution that has a Winograd plan, and a product."""

    def layers(x):
        image = relax.op.nn.relu(relax.op.nn.conv2d(x, constant(32, 32, 3, 3), padding=1))
        return relax.op.nn.softmax(relax.op.matmul(image, constant(20, 24)))

    return module(layers, (1, 32, 20, 20))


@pytest.fixture(scope="module")
def seen():
    """The compiled model, and the kernels that TVM was given."""
    given, patch = [], pytest.MonkeyPatch()
    make = build.build_for_cpu
    patch.setattr(build, "build_for_cpu", lambda lowered, target: given.append(lowered) or make(lowered, target))
    try:
        return compile(two_layers(), "cpu", Options(records=None)), given[0]
    finally:
        patch.undo()


def test_each_scheduled_kernel_has_its_plan(seen):
    compiled, _ = seen
    assert set(compiled.plans) == {name for name, rule in compiled.rules.items() if rule["name"] not in ("TVM", "-")}
    assert len(compiled.plans) >= 2
    for name, plan in compiled.plans.items():
        assert plan["chosen"]["rule"] == compiled.rules[name]["name"]
        assert plan["chosen"]["decisions"] or plan["chosen"]["notes"]
        assert all(each["reason"] for each in plan["rejected"])


def test_code_is_generated_without_plans(seen):
    _, given = seen
    kernels = [func for func in given.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert kernels and not any(PLAN in (func.attrs or {}) for func in kernels)
