# SPDX-License-Identifier: Apache-2.0
"""Modules as files: read back as they were written, except for the numbers of large weights; refusals."""

import json
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from helpers import bindings, constant, module, op, random, run
from smartmem_tvm.errors import UserError
from smartmem_tvm.module_file import KEPT, module_text, read_module, write_module
from smartmem_tvm.options import Options
from smartmem_tvm.pipeline import phases_of, run_phases
from smartmem_tvm.target import parse_target

LARGE = (64, 64)  # of four-byte numbers: larger than the weights that a file keeps


def constants(mod) -> list[np.ndarray]:
    found = []
    tvm_ffi.structural_walk(mod["main"], (tvm.ir.GenericConst, lambda each: found.append(each.value.numpy())))
    return found


def with_weight(values) -> tvm.IRModule:
    weight = relax.const(values, str(values.dtype))
    return module(lambda x: op.add(op.multiply(x, weight), weight), values.shape, dtype=str(values.dtype))


def back(mod, path):
    write_module(mod, path)
    return read_module(path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_large_weight_is_drawn_from_what_is_known_of_it(tmp_path, dtype):
    values = (3 + 0.5 * random(LARGE)[0]).astype(dtype)
    mod, path = with_weight(values), tmp_path / "m.json"
    (drawn,) = {each.tobytes(): each for each in constants(back(mod, path))}.values()
    assert path.stat().st_size < values.nbytes / 2 + 4000
    assert drawn.shape == values.shape and drawn.dtype == values.dtype and not np.array_equal(drawn, values)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [values.mean(), values.std()], rtol=0.05)
    assert drawn.min() >= values.min() - 1e-3 and drawn.max() <= values.max() + 1e-3
    assert [*map(bytes, constants(read_module(path)))] == [*map(bytes, constants(read_module(path)))]


def with_infinity():
    values = random(LARGE)[0]
    values[1, 1] = -np.inf
    return values


@pytest.mark.parametrize(
    "values",
    [random((KEPT // 4,))[0], np.arange(4096), with_infinity(), np.ones(8192, bool)],
    ids=["small", "integers", "mask", "booleans"],
)
def test_other_constants_are_kept(tmp_path, values):
    operator = op.logical_and if values.dtype == bool else op.add
    mod = module(lambda x: operator(x, relax.const(values, str(values.dtype))), values.shape, dtype=str(values.dtype))
    (found,) = constants(back(mod, tmp_path / "m.json"))
    np.testing.assert_array_equal(found, values)


def test_what_is_shared_stays_shared(tmp_path):
    mod = back(with_weight(random(LARGE)[0]), tmp_path / "m.json")
    product, total = (binding.value.args[1] for binding in bindings(mod))
    assert product.same_as(total)


def test_the_weights_own_module_is_not_changed(tmp_path):
    values = random(LARGE)[0]
    mod = with_weight(values)
    write_module(mod, tmp_path / "m.json")
    np.testing.assert_array_equal(constants(mod)[0], values)


@pytest.mark.parametrize("target", ["cpu", "cuda", "adreno-740"])
def test_each_phase_can_be_read_back(tmp_path, target):

    def network(x):
        normal = op.nn.layer_norm(op.permute_dims(x), constant(8), constant(8), [-1])
        return op.nn.softmax(op.matmul(normal, constant(8, 8)))

    path, texts = tmp_path / "m.json", []

    def look(_, mod):
        again = back(mod, path)
        assert module_text(again) == module_text(mod) and tvm_ffi.structural_equal(again, mod)
        texts.append(module_text(mod))

    with parse_target(target) as found:
        run_phases(module(network, (8, 16)), phases_of(found), Options(), look)
    assert len(set(texts)) >= 8


def test_script_is_read_too(tmp_path):
    mod = module(lambda x: op.exp(op.permute_dims(x)), (3, 4))
    (x,) = random((3, 4))
    np.testing.assert_array_equal(run(back(mod, tmp_path / "m.py"), x)[0], run(mod, x)[0])


def changed(path, change):
    graph = json.loads(path.read_text())
    change(graph)
    path.write_text(json.dumps(graph))


def drop_a_field(graph):
    del next(node for node in graph["nodes"] if node["type"] == "relax.expr.Function")["data"]["body"]


def add_a_function(graph):
    graph["nodes"].append({"type": "ffi.Function", "data": "x"})


def name_a_variable_by_its_type(graph):
    """Name a variable by its type, which TVM's printer reads as a string, and crashes."""
    variable = next(node["data"] for node in graph["nodes"] if node["type"] == "relax.expr.DataflowVar")
    variable["name"] = variable["ty"]


def take_the_value_of_a_constant(graph):
    next(node for node in graph["nodes"] if node["type"] == "ir.GenericConst")["data"]["value"] = 0


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda graph: graph["metadata"].update(tvm_version="0.1"), "was written by TVM 0.1, and this is"),
        (lambda graph: graph.update(root_index=0), "not a module"),
        (lambda graph: graph.update(root_index=10**6), "holds no module"),
        (lambda graph: graph.pop("nodes"), "holds no module"),
        (drop_a_field, "holds no module"),
        (
            name_a_variable_by_its_type,
            "holds no module (a relax.expr.DataflowVar has a relax.TensorType in the place of a text)",
        ),
        (take_the_value_of_a_constant, "holds no module (a ir.GenericConst lacks a Any)"),
        (add_a_function, "holds a ffi.Function, which is no part of a module"),
    ],
)
def test_damaged_files(tmp_path, change, sentence):
    path = tmp_path / "m.json"
    write_module(module(lambda x: op.exp(op.add(x, constant(3))), (3,)), path)
    changed(path, change)
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        read_module(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("m.json", b"", "holds no module"),
        ("m.json", b"[]", "holds no module"),
        ("m.json", b"\xff\xfe", "cannot be read (no text)"),
        ("m.py", b"x = (", "holds no module ('(' was never closed"),
        ("m.py", b"import os\nos.abort()", "holds no module (Visitor of AST node is not implemented: Import)"),
        ("missing.json", None, "cannot be read (No such file or directory)"),
    ],
)
def test_files_of_something_else(tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{path} {sentence}")):
        read_module(path)


def test_nothing_is_half_written(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        write_module(module(op.exp, (3,)), tmp_path / "missing" / "m.json")
    assert list(tmp_path.iterdir()) == []
