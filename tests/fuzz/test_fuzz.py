# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer has found so far, the first graphs of it, and the fuzzer itself."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import drawn_open
import worker_jobs
from fuzz import check, nested, reference
from fuzz.case import Case, all_nodes, load, nested_graphs
from fuzz.check import Verdict
from fuzz.draw import CHAINS, SMALL, UNITS, WINDOWS, draw
from fuzz.operators import TABLE
from fuzz.pool import Pool, ended
from fuzz.report import Report
from fuzz.shrink import shrink
from smartmem_tvm.executor.workers import Workers

CORPUS = sorted(Path(__file__).parent.joinpath("corpus").glob("*.onnx"))
GRAPHS, OTHERS = 50, 20
PARTS = range(0, GRAPHS, 10), range(0, OTHERS, 10)


def target_of(path: Path) -> str:
    """The target that a file failed on."""
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}["target"]


@pytest.fixture(scope="module")
def corpus():
    """What becomes of each file, in a process that may crash."""
    pool = Pool(1, timeout=60)
    verdicts = dict(pool.verdicts([check.Job(target_of(path), case=load(path)) for path in CORPUS]))
    pool.close()
    return {path: verdicts[number] for number, path in enumerate(CORPUS)}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_corpus(path, corpus):
    verdict = corpus[path]
    assert verdict["kind"] in (check.OK, check.REFUSED), f"{verdict['kind']}: {verdict['detail']}"


@pytest.mark.parametrize("first", PARTS[0])
def test_small_graphs(first):
    """Random graphs, always the same ones: `make fuzz` takes others."""
    all_right({seed: draw(seed, SMALL) for seed in range(first, first + 10)})


@pytest.mark.parametrize("first", PARTS[1])
@pytest.mark.parametrize("kind", [WINDOWS, UNITS])
def test_small_cases_of_other_kinds(kind, first):
    """Single operators on windows, and what has dimensions of 1."""
    all_right({seed: draw(seed, SMALL, kind) for seed in range(first, first + 10)})


def all_right(cases):
    verdicts = {seed: check.check(case) for seed, case in cases.items()}
    faults = {seed: verdict for seed, verdict in verdicts.items() if verdict.kind in check.FAULTS}
    assert not faults, faults
    assert sum(verdict.kind == check.OK for verdict in verdicts.values()) >= 0.7 * len(cases)


def case(nodes, inputs, outputs, constants=()):
    """A case of (operator, inputs, output) and arrays."""
    info = lambda name, v: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)  # noqa: E731
    made = [helper.make_node(op, ins, [out]) for op, ins, out in nodes]
    stated = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(made, "case", [info(*item) for item in inputs.items()], results, stated)
    return Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), inputs)


def test_a_seed_is_always_the_same_case():
    one, other, third = draw(12), draw(12), draw(13)
    assert one.model.SerializeToString() == other.model.SerializeToString() != third.model.SerializeToString()
    assert one.options == other.options
    assert all(np.array_equal(value, other.inputs[name], equal_nan=True) for name, value in one.inputs.items())


def test_a_file_holds_all_of_a_case(tmp_path):
    before = Case(draw(5).model, draw(5).inputs, {"fuse": False})
    before.save(tmp_path / "case.onnx")
    after = load(tmp_path / "case.onnx")
    assert after.model.graph.SerializeToString() == before.model.graph.SerializeToString()
    assert after.options == before.options and list(after.inputs) == list(before.inputs)
    assert all(np.array_equal(after.inputs[name], value, equal_nan=True) for name, value in before.inputs.items())


def test_ranks_types_and_sizes_are_all_drawn():
    values = [value for seed in range(150) for value in draw(seed, SMALL).inputs.values()]
    assert {value.ndim for value in values} == set(range(7))
    assert {"float32", "float64", "float16", "int32", "int64", "bool", "uint8"} <= {str(v.dtype) for v in values}
    assert {0, 1, 2, 3, 13, 17} <= {n for value in values for n in value.shape}
    assert len(TABLE) > 50


def test_windows_have_every_attribute():
    """Each one free: also none, uneven ones, kernels that are larger than the picture, results of one place."""
    nodes, large, single, uneven, ranks = {}, 0, 0, 0, set()
    for seed in range(400):
        drawn = draw(seed, SMALL, WINDOWS)
        sizes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in drawn.model.graph.input}
        results = [[d.dim_value for d in each.type.tensor_type.shape.dim] for each in drawn.model.graph.output]
        single += any(len(shape) > 2 and set(shape[2:]) == {1} for shape in results)
        for node in drawn.model.graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            nodes.setdefault(node.op_type, set()).update(attributes)
            pads, kernel = attributes.get("pads", []), attributes.get("kernel_shape", [])
            uneven += node.op_type == "Conv" and pads[: len(pads) // 2] != pads[len(pads) // 2 :]
            ranks.add(len(kernel))
            picture = sizes.get(node.input[0], ())[2:] if node.input else ()
            large += any(k > n for k, n in zip(kernel, picture))
    window = {"kernel_shape", "strides", "dilations", "pads", "auto_pad"}
    assert {"group"} | window <= nodes["Conv"]
    assert {"group", "output_padding", "output_shape"} | window <= nodes["ConvTranspose"]
    assert {"ceil_mode", "storage_order"} | window <= nodes["MaxPool"]
    assert {"ceil_mode", "count_include_pad"} | window <= nodes["AveragePool"]
    assert {"ceil_mode", "p"} | window <= nodes["LpPool"]
    assert {"ConvInteger", "QLinearConv", "MaxUnpool", "Col2Im", "GlobalMaxPool"} <= nodes.keys()
    assert {1, 2, 3} <= ranks and large > 20 and single > 20 and uneven > 20


def test_most_dimensions_of_the_kind_of_units_are_one():
    cases = [draw(seed, SMALL, UNITS) for seed in range(150)]
    sizes = [n for each in cases for value in each.inputs.values() for n in value.shape]
    assert sizes.count(1) > 0.5 * len(sizes)
    assert {"LSTM", "GRU", "RNN", "Attention", "MatMul", "Softmax"} <= {op for each in cases for op in each.operators}


def test_chains_have_steps_of_all_kinds():
    cases = [draw(seed, SMALL, CHAINS) for seed in range(25)]
    graphs = [each.model.graph for each in cases]
    assert {"MatMul", "Softmax", "Concat", "Gather", "Slice", "Tanh"} <= {op for each in cases for op in each.operators}
    assert any(len(each.output) > 2 for each in graphs) and max(len(each.node) for each in graphs) > 150
    assert {1, 2, 33} & {n for each in cases for value in each.inputs.values() for n in value.shape}


def test_one_wrong_number_is_found():
    x = np.random.default_rng(0).standard_normal((5, 7)).astype("f4")
    (right,) = reference.expected(case([("Tanh", ["x"], "h"), ("Transpose", ["h"], "y")], {"x": x}, {"y": 1}))
    got = right.value.copy()
    assert not right.fault(got) and not right.fault(got * np.float32(1 + 1e-7))
    got[3, 2] += 1e-4
    assert "1 of 35 numbers are wrong, the first at (3, 2)" in right.fault(got)
    assert "float64" in right.fault(right.value.astype("f8"))
    assert "for float32[7, 5]" in right.fault(right.value.reshape(35))


def test_what_rounding_moves_is_not_wrong():
    """A sum that cancels is known less well; a Floor of what may be below 1 or not is not known at all."""
    third, x = np.float32(1 / 3), np.array([1 / 3, 2.5], "f4")
    nodes = [("Div", ["x", "c"], "h"), ("Floor", ["h"], "y"), ("Sub", ["h", "one"], "z")]
    constants = {"c": third, "one": np.float32(1)}
    whole, rest = reference.expected(case(nodes, {"x": x}, {"y": 1, "z": 1}, constants), runs=20)
    assert not whole.fault(np.array([0, 7], "f4")) and whole.fault(np.array([1, 6], "f4"))
    assert not rest.fault(rest.value + np.array([5e-7, 0], "f4")) and rest.fault(rest.value + np.float32(1e-3))


def test_what_is_no_number_may_be_another_one_by_algebra_alone(monkeypatch):
    """`inf * b - inf`: NaN as it is drawn, infinite as `inf * (b - 1)`."""
    x, b = np.array([1, np.inf], "f4"), np.array([3, 3], "f4")
    nodes = [("Mul", ["x", "b"], "h"), ("Sub", ["h", "x"], "y")]
    drawn = case(nodes, {"x": x, "b": b}, {"y": 1})
    drawn.model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [2]))
    assert check.check(drawn).kind == check.OK
    monkeypatch.setattr(check, "compile_and_run", lambda *_: [np.array([2, np.inf], "f4")])
    assert check.check(drawn).kind == check.WRONG


def test_a_mean_is_rounded():
    """Three equal numbers without their mean are 0 or a unit in the last place, times up to 300."""
    x = np.array([[2.3, 2.3, 2.3], [1, 2, 4]], "f4")
    nodes = [("LayerNormalization", ["x", "one"], "y")]
    (right,) = reference.expected(case(nodes, {"x": x}, {"y": 1}, {"one": np.ones(3, "f4")}))
    assert not right.fault(right.value + np.array([[7e-5, 0, 0], [0, 0, 0]], "f4"))
    assert right.fault(right.value + np.array([[0, 0, 0], [1e-2, 0, 0]], "f4"))


def test_numbers_a_rounding_apart_may_be_equal():
    """As of a half and its tanh; but not those that are further apart."""
    x = np.array([1.0009765625, 1.5, 1.25], "f2")
    other = np.array([1.0, 1.0, 1.25], "f2")
    (right,) = reference.expected(
        case([("Equal", ["x", "other"], "y")], {"x": x}, {"y": TensorProto.BOOL}, {"other": other}), runs=20
    )
    assert right.tolerance.tolist() == [np.inf, 0, np.inf]


def test_infinities_and_nan_have_places():
    x = np.array([np.inf, -np.inf, np.nan, 1], "f4")
    (right,) = reference.expected(case([("Neg", ["x"], "y")], {"x": x}, {"y": 1}))
    assert not right.fault(-x)
    assert right.fault(x) and right.fault(np.array([-np.inf, np.inf, 0, -1], "f4"))


def test_whole_numbers_are_exact():
    x = np.array([2**53, 5], "int64")
    (right,) = reference.expected(case([("Add", ["x", "x"], "y")], {"x": x}, {"y": TensorProto.INT64}))
    assert not right.fault(2 * x) and right.fault(2 * x + np.array([1, 0]))


def test_a_wrong_result_is_a_verdict(monkeypatch):
    x = np.ones((2, 3), "f4")
    one = case([("Neg", ["x"], "y")], {"x": x}, {"y": 1})
    monkeypatch.setattr(check, "compile_and_run", lambda *_: [x])
    verdict = check.check(one)
    assert verdict.kind == check.WRONG and verdict.cause == "Neg"
    assert verdict.others == "onnx as ONNX Runtime, tvm as ONNX Runtime"
    monkeypatch.setattr(check, "_reference_evaluator", lambda _: [x])
    monkeypatch.setattr(check, "_tvm", lambda _: [x])
    assert check.check(one).kind == check.DISPUTED  # then ONNX Runtime is wrong
    monkeypatch.setattr(check, "compile_and_run", lambda *_: 1 / 0)
    assert check.check(one).kind == check.INTERNAL


def test_crashes_and_hangs_are_verdicts():
    with_kinds = {"crash": check.CRASH, "loop": check.HANG, "be_killed": check.KILLED, "refuse": check.INTERNAL}
    for name, kind in with_kinds.items():
        workers = Workers(1, patience=0.5)
        (answer,) = workers.map(getattr(worker_jobs, name), ["a"])
        workers.close()
        assert ended(answer)["kind"] == kind, answer


CONTROLLED = (33, 40, 47, 94, 109)  # seeds with branches and loops


def test_branches_and_loops_are_drawn():
    """In each other, too, and with operators that only move numbers."""
    drawn = [draw(seed, SMALL).model.graph for seed in range(200)]
    found = {node.op_type for graph in drawn for node in all_nodes(graph)}
    assert set(nested.CONTROL) <= found
    outer = [node for graph in drawn for node in graph.node if node.op_type in nested.CONTROL]
    inner = {each.op_type for node in outer for graph in nested_graphs(node) for each in all_nodes(graph)}
    assert set(nested.CONTROL) & inner
    assert {len(node.output) for node in outer if node.op_type == "If"} == {1, 2, 3}


@pytest.mark.parametrize("seed", CONTROLLED)
def test_written_out_it_computes_the_same(seed):
    drawn = draw(seed, SMALL)
    assert set(drawn.operators) & set(nested.CONTROL)
    for way in nested.ways(drawn):
        plain = nested.written_out(way)
        assert not set(plain.operators) & set(nested.CONTROL)
        expected = reference.expected(plain)
        assert not check.faults(way, reference.run(way.model, way.inputs), expected)


def test_every_way_of_a_branch_is_run(monkeypatch):
    x = np.array([1, -2], "f4")
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [helper.make_tensor_value_info(op, 1, [2])])
        for op in ("Neg", "Abs")
    )
    one = case([], {"c": np.array(True), "x": x}, {"y": 1})
    one.model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    right = {True: -x, False: abs(x)}
    monkeypatch.setattr(check, "compile_and_run", lambda way, _: [right[bool(way.inputs["c"])]])
    assert check.check(one).kind == check.OK
    right[False] = x
    assert check.check(one).kind == check.WRONG
    assert [bool(way.inputs["c"]) for way in nested.ways(one)] == [True, False]


class Suspicious:
    """In place of a pool: every case with a Neg is wrong."""

    def verdicts(self, jobs):
        for number, job in enumerate(jobs):
            try:
                reference.run(job.case.model, job.case.inputs)
                kind = check.WRONG if "Neg" in job.case.operators else check.OK
            except reference.Refused:
                kind = check.NOT_DRAWN
            yield number, asdict(Verdict(kind))


def test_shrinks_to_what_matters():
    nodes = [("Relu", ["x"], "a"), ("Neg", ["a"], "b"), ("Tanh", ["b"], "c"), ("Exp", ["a"], "d")]
    big = case(nodes, {"x": np.random.default_rng(0).standard_normal((8, 9)).astype("f4")}, {"c": 1, "d": 1})
    big.options = {"fuse": False}
    small, verdict = shrink(big, "llvm", Suspicious())
    assert [node.op_type for node in small.model.graph.node] == ["Neg"] and not small.options
    assert [value.shape for value in small.inputs.values()] == [(1, 1)]
    assert verdict["kind"] == check.WRONG


def test_the_report_counts_causes():
    report = Report()
    report.add(3, asdict(Verdict(check.OK, loose=0.5)))
    report.add(4, asdict(Verdict(check.WRONG, "Neg")))
    report.add(5, asdict(Verdict(check.REFUSED, "a message")))
    assert report.faults == 1 and report.total == 3 and report.causes[check.WRONG] == {"Neg": [4]}
    assert report.line() == "3 graphs: 1 ok, 1 wrong, 1 refused"


@pytest.mark.parametrize("seed", [68, 81, 87, 105, 121, 133])
def test_graphs_whose_dimension_is_open(seed):
    assert drawn_open.verdict(seed) == (check.OK, "")


def test_a_slice_of_more_items_than_a_probe_has():
    found, why = drawn_open.verdict(292)
    assert found == check.REFUSED and "strided_slice" in why
