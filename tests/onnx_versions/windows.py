# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pools."""

import numpy as np

from onnx_versions.cases import Stated, case, f, p, stated

IMAGE, WEIGHTS = f(1, 4, 7, 6), f(6, 4, 3, 2)
case("Conv", IMAGE, Stated(WEIGHTS), Stated(f(6)), pads=[1, 0, 1, 1], strides=[2, 1])
case("Conv", IMAGE, Stated(f(6, 2, 3, 3)), group=2, auto_pad="SAME_UPPER", dilations=[1, 1])
case("Conv", f(2, 3, 9), Stated(f(4, 3, 3)), dilations=[2])
case("ConvTranspose", f(1, 4, 3, 4), Stated(f(4, 3, 3, 2)), Stated(f(3)), strides=[2, 1], pads=[1, 0, 0, 1])
case("ConvTranspose", f(1, 4, 3, 4), Stated(f(4, 3, 3, 3)), strides=[2, 2], output_shape=[6, 8])
case("ConvTranspose", f(1, 4, 3, 4), Stated(f(4, 3, 3, 3)), strides=[2, 2], output_padding=[1, 1])
case(
    "ConvInteger",
    np.arange(32, dtype="uint8").reshape(1, 2, 4, 4),
    Stated(np.arange(16, dtype="uint8").reshape(2, 2, 2, 2)),
)
for op in ("AveragePool", "MaxPool"):
    case(op, IMAGE, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    case(op, IMAGE, kernel_shape=[2, 2])
    case(op, IMAGE, kernel_shape=[3, 3], auto_pad="SAME_LOWER")
    case(op, IMAGE, first=10, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
case("AveragePool", IMAGE, first=7, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1)
case("AveragePool", IMAGE, first=19, kernel_shape=[2, 2], dilations=[2, 1])
case("MaxPool", IMAGE, first=8, outputs=2, kernel_shape=[2, 2])
case("MaxPool", IMAGE, first=8, outputs=2, kernel_shape=[2, 2], storage_order=1)
case("MaxPool", IMAGE, first=10, kernel_shape=[2, 2], dilations=[2, 1])


def lp(x, power):
    """Norms of windows of 2 by 2, one beside the other."""
    parts = [np.abs(x[:, :, i : 6 + i : 2, j : 6 + j : 2]) ** power for i in range(2) for j in range(2)]
    return sum(parts) ** (1 / power)


case("LpPool", f(1, 4, 6, 6), last=1, want=lambda x: lp(x, 2.0), kernel_shape=[2, 2], strides=[2, 2])
case("LpPool", f(1, 4, 6, 6), last=1, want=lambda x: lp(x, 3.0), kernel_shape=[2, 2], strides=[2, 2], p=3.0)
case("LpPool", IMAGE, first=2, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
case("LpPool", IMAGE, first=2, kernel_shape=[2, 2], p=3)
case("LpPool", IMAGE, first=18, kernel_shape=[2, 2], ceil_mode=1, dilations=[2, 1])
case("GlobalAveragePool GlobalMaxPool", IMAGE)
norm = lambda x, n: (np.abs(x) ** n).sum((2, 3), keepdims=True) ** (1 / n)  # noqa: E731
case("GlobalLpPool", IMAGE, last=1, want=lambda x: norm(x, 2))
case("GlobalLpPool", IMAGE, last=1, want=lambda x: norm(x, 3), p=3.0)
case("GlobalLpPool", IMAGE, first=2)
case("GlobalLpPool", IMAGE, first=2, p=3)
case("MaxUnpool", p(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]]), kernel_shape=[2, 2], strides=[2, 2])
case("MaxRoiPool", f(1, 2, 6, 6), np.array([[0, 0, 0, 3, 3], [0, 1, 2, 5, 5]], "f4"), pooled_shape=[2, 2])
ROIS = (np.array([[1, 1, 5, 4], [0, 0, 3, 3]], "f4"), np.array([0, 0]))
case("RoiAlign", f(1, 2, 6, 6), *ROIS, output_height=2, output_width=3, sampling_ratio=2)
case("RoiAlign", f(1, 2, 6, 6), *ROIS, first=16, output_height=2, output_width=2, sampling_ratio=2,
     coordinate_transformation_mode="output_half_pixel")  # fmt: skip
case("GridSample", f(1, 2, 4, 5), np.tanh(f(1, 3, 3, 2)))
case("GridSample", f(1, 2, 4, 5), np.tanh(f(1, 3, 3, 2)), last=16, mode="bicubic", padding_mode="border")
case("GridSample", f(1, 2, 4, 5), np.tanh(f(1, 3, 3, 2)), first=20, mode="cubic", padding_mode="border")
case("AffineGrid", f(1, 2, 3), stated([1, 1, 3, 4], "i8"))
case("Col2Im", f(1, 5, 5), stated([5, 5], "i8"), stated([1, 5], "i8"))
case("DeformConv", f(1, 1, 4, 4), Stated(f(1, 1, 2, 2)), f(1, 8, 3, 3))
case("CausalConvWithState", f(2, 3, 6), f(3, 1, 4), f(3), outputs=2)
case("ImageDecoder", np.arange(64, dtype="uint8"), want=lambda _: np.zeros((1, 1, 3), "uint8"))
