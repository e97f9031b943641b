# SPDX-License-Identifier: Apache-2.0
"""The light format on a small hand-made model: round trip, determinism, statistics, refusals."""

import ast
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm import light
from smartmem_tvm.errors import UserError
from smartmem_tvm.light import KEY, Recipe, fill, is_light, strip

RECIPE = Recipe(mean=0.25, std=0.5, min=-1.0, max=1.5, seed=7)
MASK = np.where(np.tri(8), 0.0, -100.0).astype(np.float32)


def small_model(dtype=np.float32):
    """Return ``y = x @ weight + mask`` with a shape tensor on the side."""
    weight = np.arange(64, dtype=dtype).reshape(8, 8)
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["product", "mask"], ["sum"]),
            helper.make_node("Reshape", ["sum", "shape"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", onnx_type, [8, 8])],
        [helper.make_tensor_value_info("y", onnx_type, [64])],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(MASK.astype(dtype), "mask"),
            numpy_helper.from_array(np.array([64]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def with_recipes(text):
    """Return a light model whose recipes are `text`."""
    model = strip(small_model(), {"weight": RECIPE})
    entry = next(entry for entry in model.metadata_props if entry.key == KEY)
    entry.value = text if isinstance(text, str) else json.dumps(text)
    return model


def values_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_strip_empties_only_the_named_tensors_and_changes_no_input():
    model = small_model()
    before = model.SerializeToString(deterministic=True)
    bare = strip(model, {"weight": RECIPE})
    assert model.SerializeToString(deterministic=True) == before
    assert not is_light(model) and is_light(bare)
    assert list(bare.graph.node) == list(model.graph.node)
    weight, mask, shape = bare.graph.initializer
    assert (weight.name, list(weight.dims), weight.data_type) == ("weight", [8, 8], TensorProto.FLOAT)
    assert not weight.raw_data
    assert [mask, shape] == list(model.graph.initializer)[1:]


def test_fill_gives_a_complete_ordinary_model_and_leaves_the_light_one(tmp_path):
    onnx.save(strip(small_model(), {"weight": RECIPE}), tmp_path / "light.onnx")
    bare = onnx.load(tmp_path / "light.onnx")
    full = fill(bare)
    onnx.checker.check_model(full, full_check=True)
    assert is_light(bare) and not is_light(full)
    values = values_of(full)
    np.testing.assert_array_equal(values["mask"], MASK)
    np.testing.assert_array_equal(values["shape"], [64])
    np.testing.assert_array_equal(values["weight"], RECIPE.draw((8, 8)))


def test_fill_keeps_other_metadata():
    model = small_model()
    model.metadata_props.add(key="author", value="somebody")
    full = fill(strip(model, {"weight": RECIPE}))
    assert [(entry.key, entry.value) for entry in full.metadata_props] == [("author", "somebody")]


def test_fill_returns_a_model_that_is_not_light_as_it_is():
    model = small_model()
    assert fill(model) is model


def test_draw_gives_known_bytes():
    """The draw must stay as it is: a change would change every published result."""
    digest = hashlib.sha256(RECIPE.draw((1000, 3)).tobytes()).hexdigest()
    assert digest == "359e6c1ba87fd90817a9041b38f58435f1dee98dae68e3484b885ed94eced321"


def test_draw_is_deterministic_and_depends_on_the_seed():
    other = Recipe(**{**vars(RECIPE), "seed": 8})
    np.testing.assert_array_equal(RECIPE.draw((100,)), RECIPE.draw((100,)))
    assert np.abs(np.corrcoef(RECIPE.draw((10000,)), other.draw((10000,)))[0, 1]) < 0.05


def test_draw_has_the_statistics_of_its_recipe():
    wide = Recipe(mean=3.0, std=0.5, min=-10.0, max=10.0, seed=1)
    values = wide.draw((100, 1000))
    assert values.dtype == np.float32
    assert abs(values.mean() - 3.0) < 0.01 and abs(values.std() - 0.5) < 0.01
    cut = Recipe(mean=3.0, std=0.5, min=2.5, max=3.25, seed=1).draw((100, 1000))
    assert cut.min() == 2.5 and cut.max() == 3.25


def test_recipe_of_an_array_describes_it():
    values = np.random.default_rng(0).normal(2.0, 0.1, 1000).astype(np.float32)
    recipe = Recipe.of(values, "a")
    expected = (values.mean(), values.std(), values.min(), values.max())
    np.testing.assert_allclose((recipe.mean, recipe.std, recipe.min, recipe.max), expected, rtol=1e-4)
    assert recipe.seed != Recipe.of(values, "b").seed


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fill_keeps_the_float_type(dtype):
    weight = values_of(fill(strip(small_model(dtype), {"weight": RECIPE})))["weight"]
    assert weight.dtype == dtype
    np.testing.assert_array_equal(weight, RECIPE.draw((8, 8)).astype(dtype))


@pytest.mark.parametrize("text", ["{", "[1]", "null", "NaN", '"x"', "[" * 100_000])
def test_broken_json_is_refused(text):
    with pytest.raises(UserError, match="not valid JSON"):
        fill(with_recipes(text))


@pytest.mark.parametrize(
    "change",
    [
        {"mean": "zero"},
        {"mean": float("nan")},
        {"max": float("inf")},
        {"max": 10**400},
        {"std": -1.0},
        {"min": 2.0},
        {"seed": -1},
        {"seed": 2**32},
        {"seed": 1.5},
        {"std": True},
        {"extra": 1.0},
    ],
    ids=str,
)
def test_bad_recipe_is_refused_by_the_name_of_its_tensor(change):
    with pytest.raises(UserError, match="'weight' must give numbers mean, std, min, max, seed"):
        fill(with_recipes({"weight": {**vars(RECIPE), **change}}))


def test_recipe_without_a_field_or_that_is_no_table_is_refused():
    for entry in ({"mean": 1.0}, 3):
        with pytest.raises(UserError, match="'weight' must give"):
            fill(with_recipes({"weight": entry}))


def test_missing_recipe_is_refused():
    with pytest.raises(UserError, match="Initializer 'weight' has no data and no weight recipe"):
        fill(with_recipes({}))


@pytest.mark.parametrize("name", ["nowhere", "shape"])
def test_recipe_for_something_else_than_a_float_initializer_is_refused(name):
    table = {"weight": vars(RECIPE), name: vars(RECIPE)}
    with pytest.raises(UserError, match=f"'{name}' fits no float initializer"):
        fill(with_recipes(table))
    with pytest.raises(UserError, match=f"'{name}' fits no float initializer"):
        strip(small_model(), {name: RECIPE})


def test_strip_refuses_a_light_model():
    with pytest.raises(UserError, match="light file already"):
        strip(strip(small_model(), {"weight": RECIPE}), {})


@pytest.mark.parametrize(("dims", "message"), [([2**40, 2**20], "2 GiB"), ([-1, 8], "fits no float")])
def test_damaged_shape_is_refused_before_memory_is_asked_for(dims, message):
    model = strip(small_model(), {"weight": RECIPE})
    model.graph.initializer[0].dims[:] = dims
    with pytest.raises(UserError, match=message):
        fill(model)


def test_module_imports_neither_tvm_nor_torch():
    tree = ast.parse(Path(light.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    third_party = {name.split(".")[0] for name in names} & {"tvm", "tvm_ffi", "torch", "onnx", "numpy"}
    assert third_party == {"onnx", "numpy"}
