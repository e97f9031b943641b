# SPDX-License-Identifier: Apache-2.0
"""Memory plans as plain data: what is where, and when."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from smartmem_tvm.deploy.build import compile, optimize
from smartmem_tvm.deploy.memory_plan import memory_plan
from smartmem_tvm.deploy.record_graph import record_graph
from smartmem_tvm.transform import PlanMemory


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((64, 64), "float32"), w: R.Tensor((64, 64), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.softmax(a)
            c = R.matmul(b, w)
            d = R.nn.softmax(R.add(c, a), axis=0)
            e = R.matmul(d, w)
            gv = (e, b)
            R.output(gv)
        return gv


def test_no_two_tensors_are_in_one_place_at_a_time():
    plan = compile(Model).memory
    assert plan["steps"] and plan["tensors"]
    for number, each in enumerate(plan["tensors"]):
        assert each["offset"] + each["bytes"] <= plan["storages"][each["storage"]]["bytes"]
        for other in plan["tensors"][:number]:
            apart = other["last"] < each["first"] or each["last"] < other["first"]
            before = min(each, other, key=lambda tensor: tensor["offset"])
            after = other if before is each else each
            beside = before["offset"] + before["bytes"] <= after["offset"]
            assert apart or beside or other["storage"] != each["storage"]


@pytest.mark.parametrize("planners", [(PlanMemory(),), (relax.transform.StaticPlanBlockMemory(),)])
@pytest.mark.parametrize("finished", [False, True])
def test_a_plan_reads_the_same_before_and_after_it_is_lowered(planners, finished):
    mod = optimize(Model)
    passes = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        *planners,
        *(
            [
                relax.transform.LowerAllocTensor(),
                relax.transform.KillAfterLastUse(),
                relax.transform.LowerRuntimeBuiltin(),
            ]
            if finished
            else []
        ),
    ]
    plan = memory_plan(tvm.transform.Sequential(passes)(mod))
    kernels = record_graph(mod)["nodes"]
    assert plan["steps"] == [each["operator"] for each in kernels]
    sizes = {(tuple(each["shape"]), each["bytes"]) for each in plan["tensors"]}
    assert sizes == {(tuple(t["shape"]), t["bytes"]) for each in kernels for t in each["outputs"]}
    # The model's results are there until the end.
    assert sum(each["last"] == len(kernels) - 1 for each in plan["tensors"]) >= 2
