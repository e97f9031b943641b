# SPDX-License-Identifier: Apache-2.0
"""The files in models/ are small, complete after filling, and depend on their input."""

import functools
import hashlib
import json
import re
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from smartmem_tvm.frontend import onnxruntime_session, read_model
from smartmem_tvm.light import KEY, fill, is_light

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
FILES = sorted(str(path.relative_to(MODELS)) for path in MODELS.rglob("*.onnx"))
LARGE = ("pythia_1b.onnx", "sd_unet.onnx")
SMALL = [name for name in FILES if name not in LARGE]
NETWORKS = runpy.run_path(str(ROOT / "scripts" / "model_facts.py"))["PAPER"]


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
    """Return file -> ONNX nodes from the second table of files in models/README.md."""
    rows = re.findall(r"^\| `(\S+\.onnx)` \|.*?\| (\d+) \|", (MODELS / "README.md").read_text(), re.MULTILINE)
    return {name: int(nodes) for name, nodes in rows}


def random_input(runner, seed):
    """Return random pixels, tokens and segments; the last quarter of the text is padding."""
    rng = np.random.default_rng(seed)
    kept = np.repeat(np.array([[1, 0]]), [96, 32], axis=1)
    make = {
        "attention_mask": lambda shape: kept,
        "input_ids": lambda shape: rng.integers(0, 30522, shape),
        "timestep": lambda shape: rng.integers(0, 1000, shape),
        "token_type_ids": lambda shape: rng.integers(0, 2, shape),
    }
    pixels = functools.partial(rng.standard_normal, dtype=np.float32)
    return {value.name: make.get(value.name, pixels)(value.shape) for value in runner.get_inputs()}


def test_the_eighteen_networks_are_there():
    assert {*NETWORKS, "bert_base"} == {Path(name).stem for name in FILES if "/" not in name}


def test_the_readme_lists_every_other_file_with_its_number_of_nodes():
    others = [name for name in FILES if name.removesuffix(".onnx") not in NETWORKS]
    assert table() == {name: len(load(name).graph.node) for name in others}


def test_files_are_small_and_name_no_paths_of_the_machine_that_made_them():
    sizes = {name: (MODELS / name).stat().st_size for name in FILES}
    assert max(size for name, size in sizes.items() if "/" not in name) < 1e6
    assert sum(sizes.values()) < 9e6
    for name in FILES:
        assert b"site-packages" not in (MODELS / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_only_weights_are_left_out(name):
    model = load(name)
    assert is_light(model)
    bare = {t.name: t for t in model.graph.initializer if not t.raw_data}
    assert bare.keys() == recipes(model).keys()
    assert {t.data_type for t in bare.values()} == {TensorProto.FLOAT}
    # Weights of under 64 values may be stored. Other stored values are masks, positions and distances, in halves.
    kept = [a for a in constants(model).values() if a.dtype.kind == "f" and a.size >= 64]
    computed = list(tables_of_waves(name))
    for array in kept:
        is_table = any(array.size == t.size and np.allclose(array.reshape(t.shape), t, atol=1e-5) for t in computed)
        assert is_table or not np.mod(array, 0.5).any()


def tables_of_waves(name):
    """Yield the tables of waves that an exporter computes: of angles per position, of frequencies."""
    # RoFormer (Su et al. 2021, section 3.2.2), on a quarter of the head's 256 and 64 channels.
    if turned := {"pythia_1b.onnx": 64, "extra/gpt_neox_160m.onnx": 16}.get(name):
        angles = np.outer(np.arange(128), 10000.0 ** (-np.arange(0, turned, 2) / turned))
        yield from (np.tile(wave(angles), 2) for wave in (np.cos, np.sin))
    if name == "sd_unet.onnx":  # of the time step (Vaswani et al. 2017, section 3.5), in 320 channels
        yield 10000.0 ** (-np.arange(160) / 160)


@pytest.mark.parametrize("name", FILES)
def test_static_shapes(name):
    graph = load(name).graph
    # The TorchScript exporter leaves some shapes unknown, which its file tests on purpose.
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
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.large) for name in LARGE)])
def test_output_is_finite_depends_on_the_input_and_does_not_magnify_rounding(name):
    model = read_model(MODELS / name)
    runner = onnxruntime_session(model, threads=2)
    first, second = random_input(runner, 0), random_input(runner, 1)
    (one,), (two,) = runner.run(None, first), runner.run(None, second)
    largest = np.abs(one).max()
    # Boxes are in pixels.
    assert np.isfinite(one).all() and 0.5 < largest < (1000 if name == "yolov8n.onnx" else 50)
    # The deeper Swins only serve to measure compile time; each block that is added dampens the input a little.
    assert np.abs(one - two).max() > (0.05 if "swin_t_" in name else 0.1) * largest
    del runner
    # Other kernels add in another order; a network that magnified that could not be compared to 1e-4.
    (other,) = onnxruntime_session(model, threads=2, lean=True).run(None, first)
    assert np.abs(one - other).max() < 1e-5 * largest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["extra/bert_base_masked.onnx", pytest.param("sd_unet.onnx", marks=pytest.mark.large)])
def test_each_input_matters(name):
    runner = onnxruntime_session(read_model(MODELS / name), threads=2)
    base, other = random_input(runner, 0), random_input(runner, 1)
    if "attention_mask" in base:
        other["attention_mask"] = np.ones_like(base["attention_mask"])
    (before,) = runner.run(None, base)
    for key in base:
        (after,) = runner.run(None, base | {key: other[key]})
        assert np.abs(after - before).max() > 0.01 * np.abs(before).max(), key


def test_filling_again_gives_the_same_bytes():
    model = load("resnext50.onnx")
    first, second = (fill(model).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
    weight = next(t for t in fill(model).graph.initializer if t.name == "fc.weight")
    digest = hashlib.sha256(weight.raw_data).hexdigest()
    assert digest == "3c03eaf3ef58a707ccc516bdd39958528c5f97238415db6ff38d0583ee4ab8bd"
