# SPDX-License-Identifier: Apache-2.0
"""Graphs as plain data, of a module that is small enough to look at."""

from tvm.script import ir as I
from tvm.script import relax as R

from smartmem_tvm.deploy.build import compile
from smartmem_tvm.deploy.record_graph import record_graph
from smartmem_tvm.ir.graph import graphs


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float16")):
        with R.dataflow():
            a = R.split(x, 2, axis=1)
            b = a[0]
            c = R.add(b, a[1])
            d = R.multiply(c, R.const(2.0, "float32"))
            e = R.permute_dims(d)
            gv = (e, R.negative(y))
            R.output(gv)
        return gv


def test_operators_and_tensors():
    found = record_graph(Model)
    assert [(each["name"], each["dtype"], each["bytes"]) for each in found["inputs"]] == [
        ("x", "float32", 128),
        ("y", "float16", 64),
    ]
    nodes = {each["operator"]: each for each in found["nodes"]}
    assert list(nodes) == ["split", "add", "multiply", "permute_dims", "negative"]
    assert [each["name"] for each in nodes["split"]["outputs"]] == ["a.0", "a.1"]
    assert nodes["split"]["outputs"][1]["shape"] == [4, 4]
    assert nodes["add"]["inputs"] == ["a.0", "a.1"] and nodes["add"]["weights"] == []
    assert [each["shape"] for each in nodes["multiply"]["weights"]] == [[]]
    assert found["outputs"] == [nodes["permute_dims"]["name"], nodes["negative"]["name"]]


def test_kernels_are_those_of_the_graph_and_weights_are_no_inputs():
    compiled = compile(Model)
    found = record_graph(compiled.graph)
    (graph,) = graphs(compiled.graph)
    assert [each["name"] for each in found["nodes"]] == [each.var.name for each in graph if each.kernel is not None]
    known = {each["name"] for each in found["inputs"]} | {t["name"] for n in found["nodes"] for t in n["outputs"]}
    assert all(set(node["inputs"]) <= known for node in found["nodes"]) and set(found["outputs"]) <= known
