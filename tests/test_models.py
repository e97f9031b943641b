# SPDX-License-Identifier: Apache-2.0
"""The files in models/: small, complete after filling, and not blind to their input."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from smartmem_tvm.light import KEY, fill, is_light

MODELS = Path(__file__).resolve().parent.parent / "models"
FILES = sorted(str(path.relative_to(MODELS)) for path in MODELS.rglob("*.onnx"))
FIVE = ("bert_base", "convnext_t", "resnext50", "swin_t", "vit_b16")
LEVELS = onnxruntime.GraphOptimizationLevel


def load(name):
    return onnx.load(MODELS / name)


def constants(model):
    """Return name -> array of everything stored in the file: initializers with data and Constant nodes."""
    found = {t.name: t for t in model.graph.initializer if t.raw_data}
    found |= {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    return {name: numpy_helper.to_array(tensor) for name, tensor in found.items()}


def recipes(model):
    return json.loads(next(entry.value for entry in model.metadata_props if entry.key == KEY))


def table():
    """Return file -> onnx_nodes from the table in models/README.md."""
    rows = re.findall(r"^\| `(\S+\.onnx)` \|.*?\| (\d+) \|", (MODELS / "README.md").read_text(), re.MULTILINE)
    return {name: int(nodes) for name, nodes in rows}


def session(data, level=LEVELS.ORT_ENABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def random_input(runner, seed):
    """Return random pixels, tokens and segments; the last quarter of the text is padding."""
    rng = np.random.default_rng(seed)
    kept = np.repeat(np.array([[1, 0]]), [96, 32], axis=1)
    make = {
        "x": lambda shape: rng.standard_normal(shape, dtype=np.float32),
        "input_ids": lambda shape: rng.integers(0, 30522, shape),
        "attention_mask": lambda shape: kept,
        "token_type_ids": lambda shape: rng.integers(0, 2, shape),
    }
    return {value.name: make[value.name](value.shape) for value in runner.get_inputs()}


def test_the_five_networks_are_there():
    assert set(FIVE) == {Path(name).stem for name in FILES if "/" not in name}


def test_the_readme_lists_every_file_with_its_number_of_nodes():
    assert table() == {name: len(load(name).graph.node) for name in FILES}


def test_files_are_small_and_name_no_paths_of_the_machine_that_made_them():
    sizes = {name: (MODELS / name).stat().st_size for name in FILES}
    assert max(sizes[f"{name}.onnx"] for name in FIVE) < 1e6
    assert sum(sizes.values()) < 5e6
    for name in FILES:
        assert b"site-packages" not in (MODELS / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_only_weights_are_left_out(name):
    model = load(name)
    assert is_light(model)
    bare = {t.name: t for t in model.graph.initializer if not t.raw_data}
    assert bare.keys() == recipes(model).keys()
    assert {t.data_type for t in bare.values()} == {TensorProto.FLOAT}
    # All floats that are stored are masks and scalars: a stored weight would be a big tensor of many values.
    kept = [a for a in constants(model).values() if a.dtype.kind == "f" and a.size > 1]
    assert all(len(np.unique(array)) == 2 for array in kept)


@pytest.mark.parametrize("name", FILES)
def test_static_shapes(name):
    graph = load(name).graph
    # What the TorchScript exporter does not know is part of what its file is for.
    outputs = () if name.startswith("legacy") else graph.output
    for value in [*graph.input, *outputs]:
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("name", ["swin_t.onnx", "legacy/swin_t.onnx"])
def test_the_shifted_window_masks_survive(name):
    """Swin (Liu et al. 2021, section 3.2): -100 between tokens that the cyclic shift brought together."""
    masks = [array for array in constants(load(name)).values() if array.shape[-2:] == (49, 49)]
    masks = [mask.reshape(-1, 49, 49) for mask in masks]  # the TorchScript exporter adds axes of length one
    assert {len(mask) for mask in masks} == {64, 16, 4}, "one per stage; equal ones may be shared"
    for mask in masks:
        side = 7 * round(len(mask) ** 0.5)
        band = np.digitize(np.arange(side), [side - 7, side - 3])
        region = (band[:, None] * 3 + band).reshape(side // 7, 7, side // 7, 7)
        region = region.transpose(0, 2, 1, 3).reshape(len(mask), 49)
        expected = np.where(region[:, None] == region[:, :, None], 0.0, -100.0)
        np.testing.assert_array_equal(mask, expected)


def test_position_indices_survive():
    for name in ("bert_base.onnx", "extra/bert_base_masked.onnx"):
        positions = [a for a in constants(load(name)).values() if a.dtype == np.int64 and a.shape == (1, 128)]
        assert any(np.array_equal(array[0], np.arange(128)) for array in positions)


def test_the_legacy_export_has_chains_that_compute_shapes():
    kinds = Counter(node.op_type for node in load("legacy/swin_t.onnx").graph.node)
    assert min(kinds["Shape"], kinds["Gather"], kinds["Concat"]) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_output_is_finite_depends_on_the_input_and_does_not_magnify_rounding(name):
    data = fill(load(name)).SerializeToString()
    runner = session(data)
    first, second = random_input(runner, 0), random_input(runner, 1)
    (one,), (two,) = runner.run(None, first), runner.run(None, second)
    largest = np.abs(one).max()
    assert np.isfinite(one).all() and 0.5 < largest < 50
    # The deeper Swins only serve to measure compile time; each block that is added dampens the input a little.
    assert np.abs(one - two).max() > (0.05 if "swin_t_" in name else 0.1) * largest
    # Unfused kernels add in another order; a network that magnified that could not be compared to 1e-4.
    (unfused,) = session(data, LEVELS.ORT_DISABLE_ALL).run(None, first)
    assert np.abs(one - unfused).max() < 1e-5 * largest


@pytest.mark.slow
def test_each_input_of_the_masked_bert_matters():
    runner = session(fill(load("extra/bert_base_masked.onnx")).SerializeToString())
    base, other = random_input(runner, 0), random_input(runner, 1)
    other["attention_mask"] = np.ones_like(base["attention_mask"])
    (before,) = runner.run(None, base)
    for name in base:
        (after,) = runner.run(None, base | {name: other[name]})
        assert np.abs(after - before).max() > 0.01 * np.abs(before).max(), name


def test_filling_again_gives_the_same_bytes():
    model = load("resnext50.onnx")
    first, second = (fill(model).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
    weight = next(t for t in fill(model).graph.initializer if t.name == "fc.weight")
    digest = hashlib.sha256(weight.raw_data).hexdigest()
    assert digest == "3c03eaf3ef58a707ccc516bdd39958528c5f97238415db6ff38d0583ee4ab8bd"
