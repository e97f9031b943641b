# SPDX-License-Identifier: Apache-2.0
"""What became of each operator, from a made-up explanation; and figures that are sums."""

import pytest

from smartmem_tvm.tools.page.network import network, variable


def tensor(name, size=16):
    return {"name": name, "shape": [size // 4], "dtype": "float32", "memory": "buffer", "bytes": size}


def node(name, operator, *inputs, weights=()):
    return {
        "name": name,
        "operator": operator,
        "inputs": list(inputs),
        "outputs": [tensor(name)],
        "weights": list(weights),
    }


BEFORE = {
    "inputs": [tensor("x")],
    "nodes": [
        node("w", "reshape", weights=[tensor("")]),
        node("a", "matmul", "x", "w"),
        node("t", "permute_dims", "a"),
        node("s", "multiply", "t"),
        node("d", "identity", "s"),
        node("b", "matmul", "d"),
        node("c", "add", "b", "t"),
    ],
    "outputs": ["c"],
}
AFTER = {
    "inputs": [tensor("x")],
    "nodes": [node("a", "matmul", "x", weights=[tensor("")]), node("gv", "matmul_add", "a")],
    "outputs": ["gv"],
}
EXPLANATION = {
    "graphs": {"before": BEFORE, "after": AFTER},
    "kernels": [
        {"kernel": "matmul", "result": "a", "members": ["matmul a(4)"], "views": []},
        {
            "kernel": "matmul_add",
            "result": "gv",
            "members": ["matmul1 b(4)", "add gv(4)"],
            "views": ["transpose t(4)"],
        },
    ],
    "layout_operators": [
        {"operator": "transpose t(4)", "map": "[i] -> a[i]", "action": "eliminated", "into": ["gv"], "reason": "why"}
    ],
    "decisions": [{"pass": "FoldScales", "operator": "s", "action": "folded", "into": ["b"]}],
    "rules": {"matmul": {"name": "Rule", "family": "all"}},
    "memory": {
        "steps": ["matmul", "matmul_add"],
        "storages": [{"bytes": 16, "scope": "global"}, {"bytes": 32, "scope": "global"}],
        "tensors": [
            {"storage": 0, "shape": [4], "dtype": "float32", "bytes": 16, "first": 0, "last": 1},
            {"storage": 1, "shape": [6], "dtype": "float32", "bytes": 24, "first": 1, "last": 1},
        ],
    },
}
MANIFEST = {
    "model": "models/net.onnx",
    "kernels": 2,
    "target": '{"kind": "llvm", "mcpu": "core"}',
    "weights": [{"shape": [3], "dtype": "float32"}, {"shape": [5], "dtype": "bool"}],
}


@pytest.fixture(scope="module")
def found():
    return network("folder", MANIFEST, EXPLANATION)


def test_fates(found):
    fates = {each["name"]: each["fate"] for each in found["operators"]}
    assert fates == {
        **dict.fromkeys("abc", "computed"),
        "t": "eliminated",
        "w": "constant",
        "s": "rewritten",
        "d": "gone",
    }


def test_reasons(found):
    said = {each["name"]: (each["reason"], each["map"], each["into"]) for each in found["operators"]}
    assert said["t"] == ("why", "[i] -> a[i]", [1])
    assert said["s"] == ("folded by FoldScales", "", [1])
    assert "weights only" in said["w"][0]


def test_a_merged_layer_is_no_layout_operator_though_a_slice_has_its_name():
    merged = {"pass": "MergeProjections", "operator": "t", "action": "merged", "into": ["b"], "reason": "one product"}
    found = network("folder", MANIFEST, {**EXPLANATION, "decisions": [merged]})
    each = next(each for each in found["operators"] if each["name"] == "t")
    assert (each["fate"], each["reason"], each["into"]) == ("rewritten", "one product", [1])


def test_operators_stand_with_their_kernels(found):
    kernels = found["kernels"]
    names = [[each["name"] for each in found["operators"][slice(*kernel["operators"])]] for kernel in kernels]
    assert names == [["w", "a"], ["t", "s", "d", "b", "c"]]
    operators = found["operators"]
    reads = {each["name"]: {operators[source]["name"] for source in each["inputs"]} for each in operators}
    assert reads["c"] == {"b", "t"} and reads["a"] == {"w"}
    assert kernels[1]["inputs"] == [0] and kernels[0]["rule"] == "Rule" and kernels[1]["rule"] is None


def test_facts(found):
    facts = found["facts"]
    assert (facts["operators"], facts["kernels"], facts["layout_eliminated"]) == (7, 2, 1)
    assert (facts["planned_bytes"], facts["live_bytes"], facts["weight_bytes"]) == (48, 40, 17)
    assert found["memory"]["live"] == [16, 40]
    assert found["name"] == "net" and found["about"]["target"] == "llvm core"


def test_tensors(found):
    kinds = {each["tensor"]: (each["kind"], each["writer"], each["readers"]) for each in found["tensors"]}
    assert kinds == {"x": ("input", "", ["a"]), "a": ("tensor", "a", ["gv"]), "gv": ("result", "gv", [])}


@pytest.mark.parametrize(
    ("label", "name"),
    [("matmul12 node_linear(1, 49)", "node_linear"), ("split lv(3,)[1]", "lv"), ("node_mul", "node_mul")],
)
def test_names_in_labels(label, name):
    assert variable(label) == name
