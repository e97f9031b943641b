# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError

X = np.random.default_rng(0).uniform(-3, 3, (1, 2, 5, 7)).astype("float32")


def _resize(scales=None, sizes=None, region=None, **attributes):
    given = {"r": region, "s": scales, "z": sizes}
    constants = {
        name: np.asarray(value, "int64" if name == "z" else "float32")
        for name, value in given.items()
        if value is not None
    }
    names = ["x", *(name if name in constants else "" for name in given)]
    return helper.make_node("Resize", names, ["y"], name="grow", **attributes), constants


CASES = {
    "nothing to do": {"sizes": [1, 2, 5, 7], "mode": "linear"},
    "sizes that scales do not give": {"scales": [1, 1, 0.6, 1.7], "mode": "linear"},
    "cubic": {"scales": [1, 1, 0.8, 0.8], "mode": "cubic"},
    "nearest": {"scales": [1, 1, 0.6, 1.7], "mode": "nearest", "nearest_mode": "floor"},
    "channels": {"sizes": [1, 4, 5, 7], "mode": "linear"},
    "axes": {"sizes": [3, 4], "axes": [2, 3], "mode": "linear"},
    "axes turned": {"sizes": [3, 4], "axes": [3, 2], "mode": "nearest"},
    "not larger": {"sizes": [9, 9], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "mode": "linear"},
    "not smaller": {"sizes": [9, 9], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller", "mode": "nearest"},
    "symmetric": {
        "scales": [1, 1, 0.7, 1.3],
        "mode": "linear",
        "coordinate_transformation_mode": "half_pixel_symmetric",
    },
    "corners": {"sizes": [1, 2, 1, 9], "mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "outside": {"scales": [1, 1, 0.7, 1.3], "mode": "cubic", "exclude_outside": 1},
    "antialias": {"sizes": [1, 2, 3, 4], "mode": "linear", "antialias": 1},
    "antialias cubic": {"sizes": [1, 2, 3, 4], "mode": "cubic", "antialias": 1},
    "crop": {
        "sizes": [1, 2, 3, 9],
        "region": [0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2],
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_resize_computes_what_onnx_says(agree, case):
    node, constants = _resize(**CASES[case])
    agree(node, {"x": X}, constants, by_reference=True)


def test_usual_pictures_are_left_to_tvm(build, operators):
    from smartmem_tvm.frontend import from_onnx

    stated = {"antialias": 0, "keep_aspect_ratio_policy": "stretch", "exclude_outside": 0}  # as exporters do
    node, constants = _resize(scales=[1, 1, 2, 2], mode="linear", **stated)
    model = build([node], {"x": (X.shape, "float32")}, {"y": ((1, 2, 10, 14), "float32")}, constants, opset=18)
    assert operators(from_onnx(model)) == ["image.resize2d"]


def test_integers_between_others_are_refused(agree):
    node, constants = _resize(sizes=[1, 2, 3, 4], mode="linear", antialias=1)
    with pytest.raises(UserError, match=r"grow.*int32"):
        agree(node, {"x": X.astype("int32")}, constants, by_reference=True)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 1.5, 2.3]])
def test_upsample_is_a_resize(agree, mode, scales):
    node = helper.make_node("Upsample", ["x", "s"], ["y"], mode=mode)
    agree(node, {"x": X}, {"s": np.array(scales, "float32")}, opset=9)
