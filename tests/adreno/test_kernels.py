# SPDX-License-Identifier: Apache-2.0
"""Kernels for Adreno as Mesa's compiler makes them: ceilings on scratch memory, registers and instructions.

``make test-adreno`` runs these where Mesa is set up (``smartmem isa --setup``); elsewhere they are skipped, and say so.
Ceilings are loose, a fifth above the figures of 2026-11-28 (Mesa 26.2.6), as Mesa moves on.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm
from smartmem_tvm.deploy.schedules import our_schedules
from smartmem_tvm.mesa_folder import mesa_problem
from smartmem_tvm.target import parse_target, target_row
from smartmem_tvm.tools.isa.compiler import compile_all
from smartmem_tvm.tools.isa.kernels import kernel_codes
from smartmem_tvm.tools.isa.sources import kernel_programs

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(mesa_problem() is not None, reason=f"{mesa_problem()}"),
]
ROW = target_row(parse_target("adreno-740"))


def network(kind: str) -> tvm.IRModule:
    """Return a network of one operator, or a few that become one kernel."""
    shape, nodes, weights = _PARTS[kind]
    made = [numpy_helper.from_array(np.ones(dims, np.float32) / 8, name) for name, dims in weights.items()]
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        made,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return smartmem_tvm.from_onnx(model)


def _node(op: str, inputs: str, output: str, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


_PARTS = {
    "matmul": ([1, 196, 384], [_node("MatMul", "x w", "y")], {"w": [384, 1536]}),
    "small_matmul": ([1, 169, 256], [_node("MatMul", "x w", "y")], {"w": [256, 48]}),
    "pointwise": ([1, 64, 56, 56], [_node("Conv", "x w", "c"), _node("Relu", "c", "y")], {"w": [256, 64, 1, 1]}),
    "layer_norm": ([1, 196, 384], [_node("LayerNormalization", "x g b", "y")], {"g": [384], "b": [384]}),
    "softmax": ([12, 196, 196], [_node("Softmax", "x", "y")], {}),
    "depthwise": (
        [1, 96, 56, 56],
        [_node("Conv", "x w", "y", group=96, pads=[1, 1, 1, 1])],
        {"w": [96, 1, 3, 3]},
    ),
    "max_pool": ([1, 64, 112, 112], [_node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2])], {}),
    "joined": (
        [1, 64, 40, 40],
        [
            *(_node("Conv", "x v", "a"), _node("Relu", "a", "c"), _node("Conv", "c u", "b"), _node("Relu", "b", "d")),
            *(_node("Concat", "c d", "j", axis=1), _node("Conv", "j w", "e"), _node("Relu", "e", "y")),
        ],
        {"v": [64, 64, 1, 1], "u": [64, 64, 1, 1], "w": [128, 128, 1, 1]},
    ),
    "window": ([1, 64, 28, 28], [_node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"w": [64, 64, 3, 3]}),
}
# network, precision, Adreno that it is for -> most registers of a thread, most instructions of its largest kernel
CEILINGS = [
    ("matmul", "float32", 740, 48, 1650),
    ("small_matmul", "float32", 740, 48, 1230),
    ("pointwise", "float32", 740, 48, 1700),
    ("layer_norm", "float32", 740, 8, 330),
    ("softmax", "float32", 740, 16, 480),
    ("depthwise", "float32", 740, 12, 630),
    ("max_pool", "float32", 740, 12, 290),
    ("window", "float32", 740, 48, 1430),
    ("matmul", "half", 740, 48, 1920),
    ("pointwise", "half", 740, 48, 2080),
    ("depthwise", "half", 740, 8, 740),
    ("joined", "half", 740, 48, 3450),
    ("joined", "float32", 740, 48, 2500),
    ("joined", "half", 660, 48, 3700),
    ("matmul", "float32", 660, 48, 1730),
    ("matmul", "half", 660, 32, 1880),
    ("pointwise", "float32", 660, 48, 1690),
    ("matmul", "float32", 830, 48, 1670),
]


@cache
def compiled(gpu: int) -> dict[tuple[str, str], list[dict]]:
    """Return (network, precision) -> its kernels, of all networks for an Adreno; Mesa is started once."""
    target, sources = parse_target(f"adreno-{gpu}"), {}
    for kind, precision in [case[:2] for case in CEILINGS if case[2] == gpu]:
        scheduled = our_schedules(network(kind), target, smartmem_tvm.Options(precision=precision))
        sources |= {(kind, precision, name): code for name, code in kernel_programs(scheduled, target).items()}
    found: dict[tuple[str, str], list[dict]] = {}
    for (kind, precision, _), code in kernel_codes(sources, compile_all(sources, gpu)).items():
        found.setdefault((kind, precision), []).append(code.as_dict(ROW))
    return found


@pytest.mark.parametrize(("kind", "precision", "gpu", "registers", "instructions"), CEILINGS)
def test_what_the_compiler_makes_of_a_kernel(kind, precision, gpu, registers, instructions):
    """No kernel has numbers in scratch memory; registers and instructions stay below their ceilings."""
    made = compiled(gpu)[kind, precision]
    assert not any(each["refused"] for each in made)
    assert {each["kernel"][-1]: each["scratch"] for each in made if each["scratch"]} == {}
    assert max(each["registers"] for each in made) <= registers
    assert max(each["instructions"] for each in made) <= instructions
