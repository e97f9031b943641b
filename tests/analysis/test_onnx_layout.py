# SPDX-License-Identifier: Apache-2.0
"""Every layout operator of ONNX, imported from a real node: recognised, typed, and its index map right."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from helpers import count_up, legalize, move, nodes, run
from smartmem_tvm.analysis.classify import mapping_type, quadrant
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.tables.mapping_type import MappingType
from smartmem_tvm.tables.quadrant import Quadrant
from smartmem_tvm.transform import EliminateLayout

ONE_TO_ONE, ONE_TO_MANY = MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY
REORGANIZE, SHUFFLE = MappingType.REORGANIZE, MappingType.SHUFFLE
ILD_FIXED, ILI_FIXED = Quadrant.ILD_FIXED, Quadrant.ILI_FIXED
SHAPE = (2, 3, 4, 6)


@dataclass
class Case:
    """One layout operator: its ONNX nodes (from ``x`` to ``y``), and what it must be recognised as."""

    name: str
    nodes: list
    quadrant: Quadrant
    mapping: MappingType
    shape: tuple = SHAPE
    constants: dict = field(default_factory=dict)  # every one an integer array, except the value of a padding
    inputs: dict = field(default_factory=dict)  # further inputs
    outputs: tuple = ("y",)


def one(operator, constants=(), inputs=("x",), outputs=("y",), **attributes):
    return [helper.make_node(operator, [*inputs, *constants], list(outputs), **attributes)]


def case(name, operator, quad, mapping, shape=SHAPE, inputs=None, outputs=("y",), constants=None, **attributes):
    constants, inputs = constants or {}, inputs or {}
    nodes = one(operator, constants, ("x", *inputs), outputs, **attributes)
    return Case(name, nodes, quad, mapping, shape, constants, inputs, outputs)


def slice_(name, starts, ends, axes, steps, quad=ILI_FIXED, mapping=ONE_TO_ONE):
    constants = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    return case(name, "Slice", quad, mapping, constants=constants)


def pad(name, pads, mapping, mode, shape=(3, 4), value=None):
    constants = {"pads": pads} | ({} if value is None else {"value": np.float32(value)})
    return case(name, "Pad", ILI_FIXED, mapping, shape, constants=constants, mode=mode)


def roll(name, cut, axis):
    """ONNX has no Roll: exporters write slice + slice + concat."""
    nodes = one("Slice", ("cut", "end", "axis"), outputs=("tail",))
    nodes += one("Slice", ("zero", "cut", "axis"), outputs=("head",))
    nodes += one("Concat", inputs=("tail", "head"), axis=axis)
    constants = {"cut": [cut], "end": [10**6], "axis": [axis], "zero": [0]}
    return Case(name, nodes, ILD_FIXED, SHUFFLE, constants=constants)


RUN_TIME = {"indices": np.array([[1, 0], [-1, 2]])}
CASES = [
    case("reshape", "Reshape", ILD_FIXED, REORGANIZE, constants={"s": [6, 24]}),
    case("reshape to rank 1", "Reshape", ILD_FIXED, REORGANIZE, constants={"s": [-1]}),
    case("flatten", "Flatten", ILD_FIXED, REORGANIZE, axis=2),
    case("squeeze", "Squeeze", ILD_FIXED, REORGANIZE, (2, 1, 3, 1), constants={"axes": [1, 3]}),
    case("unsqueeze", "Unsqueeze", ILD_FIXED, REORGANIZE, constants={"axes": [0, 2]}),
    case("transpose", "Transpose", ILD_FIXED, SHUFFLE, perm=[0, 2, 3, 1]),
    case("transpose of a square", "Transpose", ILD_FIXED, SHUFFLE, (4, 4), perm=[1, 0]),
    case("transpose that only moves a unit axis", "Transpose", ILD_FIXED, REORGANIZE, (1, 4, 3), perm=[1, 0, 2]),
    case("depth to space, DCR", "DepthToSpace", ILD_FIXED, SHUFFLE, (2, 12, 3, 5), blocksize=2, mode="DCR"),
    case("depth to space, CRD", "DepthToSpace", ILD_FIXED, SHUFFLE, (2, 12, 3, 5), blocksize=2, mode="CRD"),
    case("space to depth", "SpaceToDepth", ILD_FIXED, SHUFFLE, (2, 3, 4, 6), blocksize=2),
    case("expand", "Expand", ILI_FIXED, ONE_TO_MANY, (3, 1), constants={"s": [2, 3, 4]}),
    case("tile", "Tile", ILI_FIXED, ONE_TO_MANY, (2, 3), constants={"repeats": [2, 3]}),
    slice_("slice", [1, 1], [3, 5], [1, 3], [1, 1]),
    slice_("slice with steps", [0, 1], [4, 6], [2, 3], [2, 3]),
    slice_("slice with a negative step", [5], [0], [3], [-2]),
    slice_("slice with negative ends", [-3], [-1], [3], [1]),
    slice_("flip", [-1], [-(10**6)], [2], [-1], ILD_FIXED, SHUFFLE),
    slice_("flip of two axes", [-1, -1], [-(10**6)] * 2, [1, 3], [-1, -1], ILD_FIXED, SHUFFLE),
    case("split", "Split", ILI_FIXED, ONE_TO_ONE, outputs=("y", "z"), constants={"s": [2, 4]}, axis=3),
    case("split into units", "Split", ILI_FIXED, ONE_TO_ONE, outputs=("y", "z", "t"), axis=1, num_outputs=3),
    case("concat", "Concat", ILI_FIXED, ONE_TO_ONE, inputs={"b": count_up(2, 2, 4, 6, start=500)}, axis=1),
    case("concat with a unit", "Concat", ILI_FIXED, ONE_TO_ONE, inputs={"b": count_up(2, 1, 4, 6, start=500)}, axis=1),
    case("gather of one", "Gather", ILI_FIXED, ONE_TO_ONE, constants={"i": 1}, axis=1),
    case("gather of a progression", "Gather", ILI_FIXED, ONE_TO_ONE, constants={"i": [1, 3, 5]}, axis=3),
    case("gather, constant indices", "Gather", ILI_FIXED, ONE_TO_MANY, constants={"i": [2, 0, -1, 0]}, axis=1),
    case("gather, run-time indices", "Gather", ILI_FIXED, ONE_TO_MANY, inputs=RUN_TIME, axis=1),
    case("gather nd, constant indices", "GatherND", ILI_FIXED, ONE_TO_MANY, constants={"i": [[0, 1], [1, -1]]}),
    pad("pad, constant", [1, 0, 2, 3], ONE_TO_ONE, "constant", value=7),
    pad("pad of a unit axis", [1, 0, 1, 3], ONE_TO_ONE, "constant", shape=(1, 4)),
    pad("pad, reflect", [1, 0, 2, 3], ONE_TO_MANY, "reflect"),
    pad("pad, edge", [1, 0, 2, 3], ONE_TO_MANY, "edge"),
    pad("pad, wrap", [1, 0, 2, 3], ONE_TO_MANY, "wrap"),
    roll("roll", 4, 3),
    roll("roll by one", 1, 2),
    roll("roll by minus one", 3, 2),
    roll("roll of a pair", 1, 0),
]


def build(case: Case) -> onnx.ModelProto:
    """The model of a case; the shapes of its results come from ONNX's reference implementation."""
    value = lambda name, array: helper.make_tensor_value_info(  # noqa: E731
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )
    constants = [
        onnx.numpy_helper.from_array(v if isinstance(v, np.float32) else np.asarray(v, "int64"), k)
        for k, v in case.constants.items()
    ]
    inputs = [value(name, array) for name, array in feeds(case).items()]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in case.outputs]
    imports = {"opset_imports": [helper.make_opsetid("", 19)], "ir_version": 9}
    model = helper.make_model(helper.make_graph(case.nodes, "layout", inputs, outputs, constants), **imports)
    for output, array in zip(model.graph.output, reference(model, case)):
        output.CopyFrom(value(output.name, array))
    return model


def feeds(case: Case) -> dict:
    return {"x": count_up(*case.shape, start=1), **case.inputs}


def reference(model: onnx.ModelProto, case: Case) -> list:
    return ReferenceEvaluator(model).run(None, feeds(case))


def legal_module(case: Case):
    return legalize(from_onnx(build(case)))


def steps(case: Case) -> list:
    return nodes(legal_module(case))


def composed(case: Case) -> list:
    return nodes(EliminateLayout()(legal_module(case)))


every = pytest.mark.parametrize("layout", CASES, ids=lambda c: c.name)
known_at_compile_time = pytest.mark.parametrize(
    "layout", [c for c in CASES if c.inputs is not RUN_TIME], ids=lambda c: c.name
)


@every
def test_each_step_is_data_movement(layout):
    found = steps(layout)
    assert found
    assert all(node.kernel is not None and movement(node.kernel) is not None for node in found)
    assert all(quadrant(node.kernel).is_fixed for node in found)


@every
def test_quadrant_and_mapping_type(layout):
    found = composed(layout)
    assert [quadrant(node.kernel) for node in found] == [layout.quadrant] * len(layout.outputs)
    assert [mapping_type(node.kernel) for node in found] == [layout.mapping] * len(layout.outputs)


@known_at_compile_time
def test_index_map_against_the_reference(layout):
    fill = float(layout.constants.get("value", 0))
    for node, expected in zip(composed(layout), reference(build(layout), layout), strict=True):
        np.testing.assert_array_equal(move(node, fill, **feeds(layout)), expected)


@every
def test_a_consumer_reads_through_it(layout):
    """Followed by a computation, no kernel of its own is left, and the results stay right."""
    model = build(layout)
    expected = [np.maximum(array, 3) for array in reference(model, layout)]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(3), "three"))
    for output in model.graph.output:
        model.graph.node.append(helper.make_node("Max", [output.name, "three"], [output.name + "_max"]))
        output.name += "_max"
    after = EliminateLayout()(legalize(from_onnx(model)))
    assert [movement(node.kernel) for node in nodes(after)] == [None] * len(layout.outputs)
    for mine, wanted in zip(run(after, *feeds(layout).values()), expected, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_run_time_gather_nd_gathers_by_one_movement():
    """The importer computes non-negative indices first; the gather itself moves data."""
    indices = np.array([[0, 1], [1, -1]])
    gather = case("gather nd", "GatherND", ILI_FIXED, ONE_TO_MANY, inputs={"indices": indices})
    *before, last = steps(gather)
    assert movement(last.kernel) is not None
    assert (quadrant(last.kernel), mapping_type(last.kernel)) == (ILI_FIXED, ONE_TO_MANY)
    assert all(movement(node.kernel) is None for node in before)
    (got,) = run(EliminateLayout()(legal_module(gather)), *feeds(gather).values())
    np.testing.assert_array_equal(got, reference(build(gather), gather)[0])
