# SPDX-License-Identifier: Apache-2.0
"""Operators that move numbers: what is an input now was an attribute once."""

import numpy as np

from onnx_versions.cases import NEWEST, case, f, i64, stated

CONSUMED = {"consumed_inputs": [0]}
X = f(4, 5)
for attrs, part in (
    ({"starts": [0, 1], "ends": [2, 3]}, np.s_[0:2, 1:3]),
    ({"axes": [1], "starts": [1], "ends": [3]}, np.s_[:, 1:3]),
    ({"starts": [1], "ends": [3]}, np.s_[1:3]),
    ({"axes": [1, 0], "starts": [-3, 1], "ends": [-1, 1000]}, np.s_[1:, -3:-1]),
):
    case("Slice", X, last=9, want=lambda x, part=part: x[part], **attrs)
case("Slice", X, i64(0, 1), i64(2, 3), first=10)
case("Slice", X, i64(3, -1), i64(0, -100), i64(0, 1), i64(-1, -2), first=10)
case("Squeeze", f(1, 3, 1, 4), last=11, want=lambda x: x[0], axes=[0])
case("Squeeze", f(1, 3, 1, 4), last=11, want=lambda x: x[0, :, 0], axes=[2, 0])
case("Squeeze", f(1, 3, 1, 4), want=np.squeeze)
case("Squeeze", f(1, 3, 1, 4), first=11, last=11, axes=[-2])
case("Squeeze", f(1, 3, 1, 4), i64(0, 2), first=13)
case("Unsqueeze", f(3, 4), last=11, want=lambda x: x[None, :, None], axes=[0, 2])
case("Unsqueeze", f(3, 4), first=11, last=11, axes=[-1])
case("Unsqueeze", f(3, 4), i64(0, 2), first=13)
case("Reshape", f(2, 3, 4), last=1, want=lambda x: x.reshape(2, 12), shape=[0, -1], old=CONSUMED)
case("Reshape", f(2, 3, 4), last=1, want=lambda x: x.reshape(4, 6), shape=[4, 6])
case("Reshape", f(2, 3, 4), i64(0, -1), first=5)
case("Reshape", f(2, 3, 4), i64(4, 6), first=14, allowzero=1)
case("Concat", f(2, 3), f(2, 4), last=1, want=lambda *x: np.concatenate(x, 1))
case("Concat", f(2, 3), f(4, 3), f(1, 3), axis=0)
case("Concat", f(2, 3), f(2, 4), first=11, axis=-1)
case("Pad", X, last=1, want=lambda x: np.pad(x, ((1, 2), (0, 3))), paddings=[1, 0, 2, 3])
case(
    "Pad", X, last=1, want=lambda x: np.pad(x, ((1, 2), (0, 3)), constant_values=2.5), paddings=[1, 0, 2, 3], value=2.5
)
case("Pad", X, last=1, want=lambda x: np.pad(x, ((1, 2), (0, 3)), "reflect"), paddings=[1, 0, 2, 3], mode="reflect")
for extra in ({}, {"value": 2.5}, {"mode": "reflect"}, {"mode": "edge"}):
    case("Pad", X, first=2, last=2, pads=[1, 0, 2, 3], **extra)
case("Pad", X, first=2, last=2, pads=[-1, 0, 0, -2])
case("Pad", X, i64(1, 0, 2, 3), stated(2.5), first=11)
case("Pad", X, i64(1, 0, 2, 3), first=11, mode="reflect")
case("Pad", X, i64(2, 3), None, i64(1), first=18)
case("Pad", X, i64(1, 0, 2, 3), first=19, mode="wrap")
SPLIT = f(6, 4)
case("Split", SPLIT, last=11, outputs=3, want=lambda x: np.split(x, 3), axis=0)
case("Split", SPLIT, last=11, outputs=2, want=lambda x: np.split(x, [1], 1), axis=1, split=[1, 3])
case("Split", SPLIT, stated([2, 4]), last=1, outputs=2, want=lambda x, _: np.split(x, [2]), axis=0)
case("Split", SPLIT, first=2, last=11, outputs=2)
case("Split", SPLIT, first=11, last=11, outputs=2, axis=-1)
case("Split", SPLIT, i64(1, 3), first=13, outputs=2, axis=1)
case("Split", SPLIT, first=13, last=13, outputs=3)
case("Split", SPLIT, first=18, outputs=4, num_outputs=4)
case("Tile", f(2, 3), stated(3.0), stated(1.0), last=1, want=lambda x, *_: np.tile(x, (1, 3)))
case("Tile", f(2, 3), stated([2.0]), stated([0.0]), last=1, want=lambda x, *_: np.tile(x, (2, 1)))
case("Tile", f(2, 3), i64(2, 3), first=6)
case("Transpose", f(2, 3, 4))
case("Transpose", f(2, 3, 4), perm=[1, 2, 0])
case("Flatten", f(2, 3, 4))
case("Flatten", f(2, 3, 4), axis=2)
case("Flatten", f(2, 3, 4), axis=0)
case("Flatten", f(2, 3, 4), first=11, axis=-1)
case("Expand", f(3, 1), i64(2, 1, 4))
case("Shape", f(2, 3, 4))
case("Shape", f(2, 3, 4), first=15, start=1)
case("Shape", f(2, 3, 4), first=15, start=-2, end=-1)
case("Size", f(2, 3, 4))
case("ConstantOfShape", i64(2, 3))
case("Gather", f(4, 5), np.array([[2, 0], [1, 3]]))
case("Gather", f(4, 5), np.array([2, 0]), axis=1)
case("Gather", f(4, 5), np.array([-1, 0]), first=11, axis=-1)
case("GatherElements", f(3, 4), np.array([[2, 0, 1, 1], [0, 0, 2, 1]]))
case("GatherND", f(3, 4), np.array([[2, 0], [1, 1]]))
case("GatherND", f(2, 3, 4), np.array([[2], [1]]), first=12, batch_dims=1)
case("Scatter ScatterElements", f(3, 4), np.array([[2, 0, 1, 1]]), f(1, 4))
case("Scatter ScatterElements", f(3, 4), np.array([[2, 0]]), f(1, 2), axis=1)
case("ScatterElements", f(3, 4), np.array([[2, 0, 1, 1]]), f(1, 4), first=16, reduction="add")
case("ScatterElements", f(3, 4), np.array([[2, 0, 1, 1]]), f(1, 4), first=18, reduction="max")
case("ScatterND", f(3, 4), np.array([[2], [0]]), f(2, 4))
case("ScatterND", f(3, 4), np.array([[2], [0]]), f(2, 4), first=16, reduction="mul")
case("TensorScatter", f(2, 5, 3), f(2, 2, 3), np.array([1, 2]))
case("DepthToSpace", f(1, 8, 2, 3), blocksize=2)
case("DepthToSpace", f(1, 8, 2, 3), first=11, blocksize=2, mode="CRD")
case("SpaceToDepth", f(1, 2, 4, 6), blocksize=2)
case("Trilu", f(3, 4), upper=0)
case("CenterCropPad", f(6, 3), i64(4, 5))
case("OneHot", np.array([1, 0, 2]), stated(4, "i8"), stated([0, 1]))
case("OneHot", np.array([[1, -2]]), stated([4], "i8"), stated([-1, 2]), first=11, axis=0)
case("Compress", f(3, 4), stated([True, False, True], "?"), axis=0)
case("NonZero", f(3, 4))
case("Unique", np.array([2, 1, 1, 3], "f4"))
case("ReverseSequence", f(4, 3, 2), np.array([4, 2, 3]))
case("Upsample", f(1, 2, 3, 4), last=1, want=lambda x: x.repeat(2, 2).repeat(3, 3), height_scale=2.0, width_scale=3.0)
for mode in ("nearest", "linear"):
    case("Upsample", f(1, 2, 3, 4), first=7, last=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
    case("Upsample", f(1, 2, 3, 4), stated([1, 1, 2, 3]), first=9, last=9, mode=mode)
    case("Resize", f(1, 2, 3, 4), stated([1, 1, 2, 1.5]), last=10, mode=mode)
    case("Resize", f(1, 2, 7, 9), stated([1, 1, 0.6, 0.7]), last=10, mode=mode)
    case("Resize", f(1, 2, 7, 9), stated([1, 1, 0.6, 1.7]), last=10, mode=mode)
    for last, roi in ((11, stated([])), (NEWEST, None)):
        first = 11 if last == 11 else 13
        none = roi  # in version 11 no input may be left out, but it may be empty
        case("Resize", f(1, 2, 3, 4), roi, stated([1, 1, 2, 1.5]), first=first, last=last, mode=mode)
        case("Resize", f(1, 2, 3, 4), roi, none, i64(1, 2, 5, 7), first=first, last=last, mode=mode)
case("Resize", f(1, 2, 3, 4), None, None, i64(5, 7), first=18, axes=[2, 3], mode="cubic")
