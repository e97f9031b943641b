# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import smartmem_tvm as sm

KINDS = ("inside and across", "turned round", "on pixels", "a point", "outside")


def _drawn(seed, build):
    """A RoiAlign of which each attribute is drawn, or left out; each kind of boxes in turn."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((random.integers(1, 4), *(random.choice([1, 2, 3, 7, 16, 17], 3)))).astype("float32")
    attributes = {
        "output_height": int(random.integers(1, 6)),
        "output_width": int(random.integers(1, 6)),
        "spatial_scale": float(random.choice([1, 0.5, 0.125, 0.37, 2])),
        "sampling_ratio": int(random.integers(0, 4)),
        "mode": str(random.choice(["avg", "max"])),
    }
    opset = int(random.choice([10, 16]))
    if opset == 16:
        attributes["coordinate_transformation_mode"] = str(random.choice(["half_pixel", "output_half_pixel"]))
    attributes = {name: value for name, value in attributes.items() if random.random() < 0.9}
    height, width = np.array(x.shape[2:]) / attributes.get("spatial_scale", 1.0)
    boxes = np.sort(random.uniform(-0.5, 1.5, (random.integers(1, 8), 2, 2)), 1) * [width, height]
    kind = KINDS[seed % len(KINDS)]
    boxes = boxes[:, ::-1] if kind == "turned round" else np.round(boxes) if kind == "on pixels" else boxes
    boxes = boxes[:, :1].repeat(2, 1) if kind == "a point" else boxes + 4 * width if kind == "outside" else boxes
    numbers = random.integers(0, len(x), len(boxes))
    arrays = {"x": x, "boxes": boxes.reshape(-1, 4).astype("float32"), "numbers": numbers}
    sizes = (len(boxes), x.shape[1], attributes.get("output_height", 1), attributes.get("output_width", 1))
    node = helper.make_node("RoiAlign", [*arrays], ["y"], **attributes)
    tensors = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    return build([node], tensors, {"y": (sizes, "float32")}, opset=opset), arrays


@pytest.mark.parametrize("seed", range(20))
def test_what_onnxruntime_aligns(build, run_onnx, run_tvm, seed):
    model, arrays = _drawn(seed, build)
    (want,), (got,) = run_onnx(model, arrays), run_tvm(sm.from_onnx(model), arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_a_level_of_a_pyramid_scheduled(build, run_onnx, mode):
    arrays = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 13, 17)).astype("float32"),
        "boxes": np.array([[2, 4, 20, 30], [9, 9, 9, 9], [-8, 3, 60, 12]], "float32"),
        "numbers": np.array([1, 0, 1]),
    }
    sizes = {"output_height": 3, "output_width": 4}
    node = helper.make_node("RoiAlign", [*arrays], ["y"], spatial_scale=0.25, mode=mode, **sizes)
    tensors = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    model = build([node], tensors, {"y": ((3, 3, 3, 4), "float32")})
    (got,) = sm.compile(sm.from_onnx(model)).run(**arrays)
    np.testing.assert_allclose(got, run_onnx(model, arrays)[0], rtol=1e-4, atol=1e-5)
    assert np.abs(got[1]).max() == 0  # a box without points


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_newer_opset(build, dtype):
    """ONNX Runtime has float32 alone, and no opset above 16."""
    arrays = {"x": np.random.default_rng(0).standard_normal((1, 2, 9, 8)), "boxes": np.array([[1.0, 2, 14, 15]])}
    found = []
    for kind, opset in ((dtype, 22), ("float32", 16)):
        given = {**{name: array.astype(kind) for name, array in arrays.items()}, "numbers": np.array([0])}
        node = helper.make_node("RoiAlign", [*given], ["y"], output_height=3, output_width=2, spatial_scale=0.5)
        model = build(
            [node], {name: (a.shape, a.dtype) for name, a in given.items()}, {"y": ((1, 2, 3, 2), kind)}, opset=opset
        )
        if kind == "float32":
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            found.append(session.run(None, given)[0])
        else:
            found.append(sm.compile(sm.from_onnx(model)).run(**given)[0])
    assert found[0].dtype == dtype
    np.testing.assert_allclose(found[0], found[1], rtol=2e-3, atol=2e-3 if dtype == "float16" else 1e-5)
