# SPDX-License-Identifier: Apache-2.0
import ml_dtypes  # noqa: F401 (numpy knows bfloat16 by its name then)
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError

RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.standard_normal((2, 3, 4, 5)).astype("float32")
GRID = RANDOM.uniform(-7, 7, (2, 6, 3, 2)).astype("float32")


def _node(**attributes):
    return helper.make_node("GridSample", ["x", "g"], ["y"], name="sampled", padding_mode="reflection", **attributes)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("corners", [0, 1])
def test_pictures_are_reflected_at_their_ends(agree, mode, corners):
    agree(_node(mode=mode, align_corners=corners), {"x": PICTURE, "g": GRID})


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_one_row_reflects_into_itself(agree, mode):
    """ONNX Runtime and its reference divide by zero where corners are aligned."""
    rows = {"x": PICTURE[:, :, :1], "g": GRID}
    agree(_node(mode=mode, align_corners=0), rows)
    from smartmem_tvm import compile as compile_
    from smartmem_tvm.frontend import from_onnx

    def run(picture):
        inputs = [
            helper.make_tensor_value_info(name, 1, value.shape) for name, value in {"x": picture, "g": GRID}.items()
        ]
        result = helper.make_tensor_value_info("y", 1, (2, 3, 6, 3))
        graph = helper.make_graph([_node(mode=mode, align_corners=1)], "sampled", inputs, [result])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return compile_(from_onnx(model)).run(picture, GRID)[0]

    twice = run(np.concatenate([rows["x"], rows["x"]], 2))
    np.testing.assert_allclose(run(rows["x"]), twice, rtol=1e-5, atol=1e-6)


def test_cubes_of_reflections_are_refused(agree):
    with pytest.raises(UserError, match=r"sampled.*cubic"):
        agree(_node(mode="cubic"), {"x": PICTURE, "g": GRID})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("padding", ["zeros", "reflection"])
def test_halves_stay_halves(agree, dtype, padding):
    node = helper.make_node("GridSample", ["x", "g"], ["y"], padding_mode=padding)
    halves = {"x": PICTURE.astype(dtype), "g": (GRID / 8).astype(dtype)}
    run = _compiled(node, {name: value.shape for name, value in halves.items()}, dtype)
    wanted = _compiled(node, {name: value.shape for name, value in halves.items()}, "float32")
    got, want = run(*halves.values()), wanted(*(value.astype("float32") for value in halves.values()))
    assert str(got.dtype) == dtype
    np.testing.assert_allclose(got.astype("float32"), want, rtol=0, atol=2**-7 * np.abs(want).max())


@pytest.mark.parametrize(
    ("dtype", "grids", "padding", "tolerance"),
    [
        ("float32", "float64", "zeros", 1e-6),
        ("float32", "float64", "reflection", 1e-6),
        ("float64", "float32", "zeros", 1e-12),
        ("float16", "float64", "zeros", 1e-3),
        ("float32", "float16", "zeros", 1e-6),
    ],
)
def test_a_grid_may_be_of_other_numbers_than_the_picture(dtype, grids, padding, tolerance):
    """ONNX allows it, and torch writes it; ONNX Runtime has no such kernel. The result is of the picture's."""
    node = helper.make_node("GridSample", ["x", "g"], ["y"], padding_mode=padding)
    picture, grid = PICTURE.astype(dtype), (GRID / 8).astype(grids)
    shapes = {"x": picture.shape, "g": grid.shape}
    got = _compiled(node, shapes, dtype, grids)(picture, grid)
    want = _compiled(node, shapes, "float64")(picture.astype("float64"), grid.astype("float64"))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


def _compiled(node, shapes, dtype, grids=None):
    from smartmem_tvm import compile as compile_
    from smartmem_tvm.frontend import from_onnx

    kind, of_grid = (helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in (dtype, grids or dtype))
    kinds = {"x": kind, "g": of_grid}
    inputs = [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items()]
    result = helper.make_tensor_value_info("y", kind, (2, 3, 6, 3))
    graph = helper.make_graph([node], "sampled", inputs, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return lambda *arrays: compile_(from_onnx(model)).run(*arrays)[0]
