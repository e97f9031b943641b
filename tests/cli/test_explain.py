# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain``: every layout operator and every kernel is accounted for."""

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import relax

from helpers import legal, module
from smartmem_tvm.cli.explain_tables import _laws, _memory_kinds, kind
from smartmem_tvm.graph_report import explain, operators


@pytest.fixture
def explained(smartmem, model_path):
    return smartmem("explain", model_path, "--json").data


def test_layout_operators_say_where_they_went(explained):
    operators = explained["layout_operators"]
    assert len(operators) == 4
    kernels = {each["result"]: each for each in explained["kernels"]}
    for each in operators:
        assert each["action"] == "eliminated"
        assert "->" in each["map"]
        assert each["into"] and all(each["operator"] in kernels[result]["views"] for result in each["into"])


def test_kernels_say_what_they_compute(explained):
    assert all(each["members"] for each in explained["kernels"])
    computed = " ".join(member for each in explained["kernels"] for member in each["members"])
    assert computed.count("matmul") == 2 and computed.count("softmax") == 1


def test_kept_operator_says_why(smartmem, tmp_path):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"], name="turn", perm=[1, 0])],
        "turn",
        [value("x", 1, [2, 3])],
        [value("y", 1, [3, 2])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "turn.onnx"
    )
    outcome = smartmem("explain", tmp_path / "turn.onnx")
    assert outcome.code == 0, outcome.err
    assert "kept: it is a result of the function" in outcome.out
    assert "0 of 1 layout operators eliminated; 1 kernels." in outcome.out


def test_operators_have_their_facts(explained):
    """As they are before anything is eliminated or fused."""
    names = [each["operator"].split(" ")[0].rstrip("1") for each in explained["operators"]]
    assert names == ["matmul", "reshape", "transpose", "softmax", "transpose", "reshape", "matmul"]
    _, _, transpose, softmax, *_, matmul = explained["operators"]
    assert (matmul["mapping_type"], matmul["quadrant"]) == ("Many-to-Many", "ILD & Variable")
    assert "associative" in matmul["properties"] and softmax["properties"] == []
    assert matmul["flops"] == 2 * 2 * 4 * 8 * 8 and matmul["bytes_of_result"] == 4 * 2 * 4 * 8
    assert list(matmul["reduction_dims"].values()) == [[2], [0]]
    assert (transpose["mapping_type"], transpose["ir_removable"]) == ("Shuffle", True)
    assert not matmul["ir_removable"], "it is the result of the model"


def test_function_without_loop_structure_says_why():
    mod = legal(lambda x, i, u: relax.op.scatter_elements(x, i, u), (4, 6), ((2, 6), "int64"), (2, 6))
    (found,) = operators(mod)
    assert found["mapping_type"] is None and found["ir_removable"] is False
    assert found["reason"]


def test_table(smartmem, model_path):
    outcome = smartmem("explain", model_path)
    assert outcome.code == 0
    assert "eliminated into" in outcome.out and "4 of 4 layout operators eliminated" in outcome.out
    assert "Many-to-Many" in outcome.out and "distributive over add, subtract" in outcome.out
    assert "Summarised" not in outcome.out


@pytest.fixture(scope="module")
def long_path(tmp_path_factory):
    """Fifty equal layers: a matmul, an addition, a function."""
    weight, bias = np.eye(8, dtype="float32"), np.ones(8, "float32")
    constants = [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]
    nodes, last = [], "x"
    for layer in range(50):
        nodes.append(helper.make_node("MatMul", [last, "weight"], [f"m{layer}"]))
        nodes.append(helper.make_node("Add", [f"m{layer}", "bias"], [f"a{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"a{layer}"], [last := f"t{layer}"]))
    x, y = (helper.make_tensor_value_info(name, 1, [4, 8]) for name in ("x", last))
    path = tmp_path_factory.mktemp("long") / "long.onnx"
    graph = helper.make_graph(nodes, "long", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_big_model_is_summarised(smartmem, long_path):
    """One row per kind, so that the screen holds it."""
    outcome = smartmem("explain", long_path)
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) < 60
    assert "49 of 50" in outcome.out, "all results but the last can go"
    assert re.search(r"50\s+matmul, add, (tir_)?tanh", outcome.out)
    assert "--op NAME shows one by one" in outcome.out


def test_a_big_model_on_request_in_full(smartmem, long_path):
    everything = smartmem("explain", long_path, "--all").out
    assert len(everything.splitlines()) > 200
    some = smartmem("explain", long_path, "--op", "tanh3").out
    assert "Summarised" not in some and len(some.splitlines()) < len(everything.splitlines())


def test_json_is_complete_however_big_the_model(smartmem, long_path):
    data = smartmem("explain", long_path, "--json").data
    assert len(data["operators"]) == 150 and len(data["kernels"]) == 50
    decided = {each["decided_by"] for each in data["decisions"] if each["pass"] == "FuseOperators"}
    assert decided == {"DNNFusion Table 3"}
    assert data == smartmem("explain", long_path, "--all", "--json").data


def test_laws_in_a_few_words():
    assert _laws(["associative", "commutative", "distributive over add", "distributive over subtract"]) == (
        "associative; commutative; distributive over add, subtract"
    )
    assert _laws([]) == ""


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("matmul12 node_linear(1, 49)", "matmul"),
        ("conv2d lv(1, 2)", "conv2d"),
        ("conv2d7 lv(1, 2)", "conv2d"),
        ("split3[1] lv", "split"),
        ("12", "12"),
    ],
)
def test_kind(label, expected):
    assert kind(label) == expected


def test_nothing_is_cut_off_in_a_narrow_table(smartmem, model_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert "…" not in smartmem("explain", model_path).out


def test_filter(smartmem, model_path, explained):
    found = smartmem("explain", model_path, "--op", "SPLIT_heads", "--json").data
    assert len(found["layout_operators"]) == 1 < len(explained["layout_operators"])
    assert 1 <= len(found["kernels"]) < len(explained["kernels"])


def test_filter_without_a_match(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--op", "zzz")
    assert outcome.code == 2
    assert "'zzz'" in outcome.err


def test_memory_and_order_of_tensors(smartmem, model_path):
    target = ("--target", "adreno-740")
    data = smartmem("explain", model_path, *target, "--json").data
    placed = {each["tensor"] for each in data["decisions"] if each["pass"] == "PlaceTextures"}
    assert {each["result"] for each in data["kernels"]} <= placed, "every tensor has a memory"
    assert all(each["reason"] and each["readers"] for each in data["strided"])
    summary = smartmem("explain", model_path, *target, "--no-textures")
    assert summary.code == 0 and "Order of dimensions of tensors in buffers" in summary.out
    assert "a result of the model keeps the user's order" in summary.out


@pytest.mark.parametrize("how", [(), ("--all",)])
def test_types_of_tensors_and_of_arithmetic_say_why(smartmem, model_path, how):
    outcome = smartmem("explain", model_path, "--target", "adreno-740", "--precision", "half", *how)
    assert outcome.code == 0 and "Types of tensors, of arithmetic and of the factors of products" in outcome.out
    text = " ".join(outcome.out.split())
    assert "stored as float16" in text and "computed as float32" in text and "multiplied" not in text


def test_memory_is_summed_up_by_what_was_decided():
    """Reasons name kernels and times, which differ from tensor to tensor."""

    def entry(kind, reason, memory="buffer", **more):
        return {"kind": kind, "memory": memory, "bytes": 500_000, "reason": reason, **more}

    slow = "modelled {} us in a texture, 81.2 us in a buffer: node_{} takes 192 us instead of 50.99 us"
    placed = [
        entry("tensor", slow.format(355.3, 1)),
        entry("tensor", slow.format(94, 2)),
        entry("weight", "node_1: it reads single numbers of texels"),
        entry("weight", "lv2: it reads single numbers of texels"),
        entry("tensor", "it is a result of the function"),
        entry("weight", None, "texture", texel=1, padding=20_000),
    ]
    assert list(_memory_kinds(placed)) == [
        (2, "tensor", "buffer", "1.000", "modelled .. us in a texture, .. us in a buffer"),
        (1, "tensor", "buffer", "0.500", "it is a result of the function"),
        (2, "weight", "buffer", "1.000", "it reads single numbers of texels"),
        (1, "weight", "texture", "0.500, of which padding 0.020", "a dimension is cut into texels"),
    ]


def test_tensors_in_the_wrong_order_say_why(smartmem, tmp_path):
    """The input is summed along its first axis."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    axes = [numpy_helper.from_array(np.array([0], "int64"), "axes")]
    graph = helper.make_graph(nodes, "sum", [value("x", 1, [8, 12])], [value("y", 1, [12])], axes)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "sum.onnx"
    )
    (entry,) = smartmem("explain", tmp_path / "sum.onnx", "--json").data["strided"]
    assert (entry["tensor"], entry["shape"], entry["memory"]) == ("x", [8, 12], "buffer")
    assert [each["dims"] for each in entry["readers"]] == [[0]]
    outcome = smartmem("explain", tmp_path / "sum.onnx")
    assert "Tensors that a reader wants in another order" in outcome.out
    assert "an input of the model keeps the user's order" in outcome.out


def test_module_that_no_pass_has_seen():
    found = explain(module(relax.op.nn.relu, (2, 3)))
    assert found == {"layout_operators": [], "strided": [], "kernels": [], "decisions": []}


def test_schedules_of_all_kernels(smartmem, model_path, explained):
    data = smartmem("explain", model_path, "--schedules", "--json").data
    assert {each["kernel"] for each in data["kernels"]} == {each["kernel"] for each in explained["kernels"]}
    assert all(each["rule"] and each["family"] and each["launches"] >= 1 for each in data["kernels"])
    assert sum(each["share"] for each in data["kernels"]) == pytest.approx(1)
    first = {each["kernel"]: each["number"] for each in reversed(explained["kernels"])}
    assert {each["kernel"]: each["number"] for each in data["kernels"]} == first
    assert (data["target"], data["not_measured"], data["catch_all_share"]) == ("llvm", None, 0)


def test_schedules_as_tables(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--schedules", "--threads", "1")
    assert outcome.code == 0, outcome.err
    assert "0 of" in outcome.out and "Their share of the time: 0.00%" in outcome.out and "Threads: 1." in outcome.out


def test_schedules_for_a_device_that_is_not_there(smartmem, model_path):
    target = '{"kind": "vulkan", "max_num_threads": 256}'
    data = smartmem("explain", model_path, "--schedules", "--target", target, "--json").data
    assert "vulkan" in data["not_measured"] and data["catch_all_share"] is None
    assert {each["share"] for each in data["kernels"]} == {None}
    assert all(each["rule"] for each in data["kernels"])
    assert "Times were not measured" in smartmem("explain", model_path, "--schedules", "--target", target).out


def test_schedules_of_some_kernels(smartmem, model_path):
    data = smartmem("explain", model_path, "--schedules", "--op", "matmul", "--json").data
    assert data["kernels"] and all("matmul" in each["kernel"] for each in data["kernels"])
    outcome = smartmem("explain", model_path, "--schedules", "--op", "zzz")
    assert outcome.code == 2 and "'zzz'" in outcome.err


def test_convolutions_of_short_numbers_on_cuda(smartmem, tmp_path):
    """Their image is copied, their groups are widened, their channels are innermost: each says so."""
    value = helper.make_tensor_value_info
    weights = {"stem": (32, 3, 7, 7), "groups": (32, 4, 3, 3), "last": (16, 32, 1, 1)}
    arrays = [numpy_helper.from_array(np.full(shape, 0.01, "float32"), name) for name, shape in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"], strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Conv", ["a", "groups"], ["b"], group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "last"], ["y"]),
    ]
    ends = [value("x", 1, [1, 3, 224, 224])], [value("y", 1, [1, 16, 112, 112])]
    graph = helper.make_graph(nodes, "short", *ends, initializer=arrays)
    path = tmp_path / "short.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    outcome = smartmem("explain", path, "--target", "cuda", "--precision", "half")
    assert outcome.code == 0, outcome.err
    assert "reads a copy of x" in outcome.out and "8 groups go" in outcome.out
    data = smartmem("explain", path, "--target", "cuda", "--precision", "half", "--json").data
    orders = [each["order"] for each in data["decisions"] if each["pass"] == "SelectLayout"]
    assert orders.count([0, 2, 3, 1]) == 2
    plain = smartmem("explain", path, "--target", "cuda")
    assert plain.code == 0 and "copy of x" not in plain.out
