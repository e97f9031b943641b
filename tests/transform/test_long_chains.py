# SPDX-License-Identifier: Apache-2.0
"""Compile time stays in proportion where maps or values would grow with every operator."""

import time

import numpy as np
import pytest
import tvm
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import model_of, reference
from helpers import calls, legal, op, random, run
from smartmem_tvm.deploy.build import generate, lower
from smartmem_tvm.ir.compose import nested_loads
from smartmem_tvm.ir.graph import graphs, read_log
from smartmem_tvm.tables.fusion_policy import MOST_NESTED
from smartmem_tvm.transform import EliminateLayout, FuseOperators


def misaligned(x):
    """Forty transposes and reshapes whose factors do not line up: no step cancels another."""
    for number in range(40):
        x = op.reshape(op.permute_dims(x), (15, 4) if number % 2 == 0 else (6, 10))
    return op.nn.relu(x)


def diamonds(x):
    for _ in range(20):
        x = op.add(op.tanh(x), x)
    return x


def passes(mod):
    start = time.process_time()
    mod = FuseOperators()(EliminateLayout()(mod))
    assert time.process_time() - start < 20
    return mod


def test_maps_that_grow_are_stored_now_and_then():
    before = legal(misaligned, (6, 10))
    after = passes(before)
    assert 1 < len(calls(after)) < len(calls(before)) / 3
    assert any("too long" in entry.get("reason", "") for entry in read_log(after))
    x = random((6, 10))[0]
    np.testing.assert_array_equal(run(after, x)[0], run(before, x)[0])


def test_values_that_grow_are_stored_now_and_then():
    before = legal(diamonds, (4, 6))
    after = passes(before)
    assert 1 < len(calls(after)) < len(calls(before))
    x = random((4, 6))[0]
    np.testing.assert_allclose(run(after, x)[0], run(before, x)[0], rtol=1e-5)


def _of(*operators):
    """A link that makes ``c`` of ``a``: rows of an operator, what it reads, and what it makes."""

    def link(number: int, at: str) -> tuple[list, str]:
        def name(each: str) -> str:
            return at if each == "a" else f"{each}{number}" if len(each) == 1 else each

        made = [helper.make_node(op_, [name(r) for r in reads], [name(to)], **kw) for op_, reads, to, kw in operators]
        return made, name("c")

    return link


TABLE, LEFT, RIGHT = np.random.RandomState(0).permutation(16), np.array([3], "uint32"), np.array([5], "uint32")
FLOATS = (np.random.RandomState(1).rand(24, 16) / 2 + 0.5).astype("float32")
INDICES = np.random.RandomState(2).randint(0, 16, 16)
# Name -> the link, how often it is there, the input, and constants: each value is read twice by the next link, or at a
# place that is itself read.
CHAINS = {
    "shifts": (
        _of(
            ("BitShift", ["a", "left"], "b", {"direction": "LEFT"}),
            ("BitwiseXor", ["a", "b"], "d", {}),
            ("BitShift", ["d", "right"], "e", {"direction": "RIGHT"}),
            ("BitwiseXor", ["d", "e"], "c", {}),
        ),
        (20, np.array([1, 2, 12345, 4000000000, 77], "uint32"), {"left": LEFT, "right": RIGHT}),
    ),
    "squares of integers": (_of(("Mul", ["a", "a"], "c", {})), (40, INDICES.astype("int32"), {})),
    "squares of floats": (_of(("Mul", ["a", "a"], "b", {}), ("Sub", ["a", "b"], "c", {})), (40, FLOATS, {})),
    "gates": (_of(("Sigmoid", ["a"], "b", {}), ("Mul", ["a", "b"], "c", {})), (20, FLOATS, {})),
    "choices": (
        _of(("Greater", ["a", "half"], "b", {}), ("Neg", ["a"], "d", {}), ("Where", ["b", "a", "d"], "c", {})),
        (24, FLOATS, {"half": np.array(0.7, "float32")}),
    ),
    "truth values": (
        _of(("Xor", ["a", "yes"], "b", {}), ("Or", ["b", "a"], "d", {}), ("And", ["d", "a"], "c", {})),
        (24, INDICES > 7, {"yes": np.array(True)}),
    ),
    "extremes": (
        _of(("Relu", ["a"], "b", {}), ("Neg", ["a"], "d", {}), ("Max", ["b", "d"], "c", {})),
        (40, FLOATS, {}),
    ),
    "transpositions": (
        _of(("Transpose", ["a"], "b", {"perm": [1, 0]}), ("Mul", ["b", "a"], "c", {})),
        (24, FLOATS[:16], {}),
    ),
    "places in themselves": (_of(("Gather", ["a", "a"], "c", {})), (24, INDICES, {})),
    "places in a table": (_of(("Gather", ["table", "a"], "c", {})), (40, INDICES, {"table": TABLE})),
}


def chain(name: str):
    """The graph of a chain, and its input."""
    link, (links, given, constants) = CHAINS[name]
    nodes, at = [], "x"
    for number in range(links):
        made, at = link(number, at)
        nodes += made
    nodes.append(helper.make_node("Identity", [at], ["y"]))
    return model_of(nodes, {"x": given}, {"y": (given.dtype, given.shape)}, constants), given


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_read_twice_is_computed_once(name):
    model, given = chain(name)
    mod, start = sm.from_onnx(model), time.process_time()
    compiled = sm.compile(mod)
    assert time.process_time() - start < 12
    (got,), (want,) = compiled.run(given), reference(model, {"x": given})
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


CUDA = {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
OPENCL = {"kind": "opencl", "max_num_threads": 256, "max_shared_memory_per_block": 32768}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("shifts", {**CUDA, "thread_warp_size": 32}),
        ("squares of integers", OPENCL),
        ("choices", OPENCL),
        ("places in themselves", {**CUDA, "thread_warp_size": 32}),
    ],
    ids=str,
)
def test_so_it_is_on_a_gpu(name, target):
    """Kernels are made for a device that need not be there; of OpenCL the source as well."""
    mod, target = sm.from_onnx(chain(name)[0]), tvm.target.Target(target, host="llvm")
    start = time.process_time()
    with target:
        lowered = lower(sm.optimize(mod), target, sm.Options()).module
    if target.kind.name == "opencl":
        generate(lowered, target)
    assert time.process_time() - start < 12


def test_places_are_looked_up_in_a_few_tables_at_once():
    (found,) = graphs(sm.optimize(sm.from_onnx(chain("places in a table")[0]), "llvm"))
    kernels = [node.kernel for node in found if node.kernel is not None]
    assert 1 < len(kernels) < 40
    assert 1 < max(nested_loads(stage) for kernel in kernels for stage in kernel.stages) <= MOST_NESTED
