# SPDX-License-Identifier: Apache-2.0
"""Sums, extremes, orders and normalizations: axes that were attributes, modes of training, statistics of each place."""

import numpy as np

from onnx_versions.cases import case, f, i64, p, stated

REDUCE = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"
X = p(2, 3, 4)
for names, last in ((REDUCE, 17), ("ReduceSum", 12)):
    case(names, X, last=last)
    case(names, X, last=last, keepdims=0)
    case(names, X, last=last, axes=[1])
    case(names, X, last=last, axes=[2, 0], keepdims=0)
    case(names, X, first=11, last=last, axes=[-1])
    case(names, X, i64(1), first=last + 1)
    case(names, X, i64(-1, 0), first=last + 1, keepdims=0)
    case(names, X, first=last + 1, noop_with_empty_axes=1)
ONCE = f(3, 4)
case("ArgMax ArgMin", ONCE)
case("ArgMax ArgMin", ONCE, axis=1, keepdims=0)
case("ArgMax ArgMin", np.array([[1, 3, 3], [0, 0, 2]], "f4"), first=12, axis=-1, select_last_index=1)
case("TopK", f(3, 5), last=1, outputs=2, want=lambda x: (-np.sort(-x), np.argsort(-x)), k=5)
case(
    "TopK", f(3, 5), last=1, outputs=2, axis=0, k=2,
    want=lambda x: (-np.sort(-x, 0)[:2], np.argsort(-x, 0)[:2]),
)  # fmt: skip
case("TopK", f(3, 5), i64(2), first=10, outputs=2)
case("TopK", f(3, 5), i64(2), first=11, outputs=2, largest=0, axis=0)


def normalized(x, scale, b, mean, var, epsilon=1e-5):
    """A batch normalization with numbers for each channel."""
    scale, b, mean, var = (each.reshape(-1, 1, 1) for each in (scale, b, mean, var))
    return (x - mean) / np.sqrt(var + epsilon) * scale + b


def at_each_place(x, scale, b, mean, var):
    """With numbers for each place of a picture."""
    return (x - mean) / np.sqrt(var + 1e-5) * scale + b


PICTURE, CHANNELS, PLACES = f(2, 3, 4, 5), [p(3), f(3), f(3), p(3)], [p(3, 4, 5), f(3, 4, 5), f(3, 4, 5), p(3, 4, 5)]
FIVE = {"consumed_inputs": [0, 0, 0, 1, 1]}
case("BatchNormalization", PICTURE, *CHANNELS, last=6, want=normalized, is_test=1, old=FIVE)
case("BatchNormalization", PICTURE, *PLACES, last=6, want=at_each_place, is_test=1, spatial=0, old=FIVE)
case("BatchNormalization", PICTURE, *PLACES, first=7, last=7, want=at_each_place, spatial=0)
case("BatchNormalization", PICTURE, *CHANNELS, first=7, epsilon=1e-3)
case("BatchNormalization", PICTURE, *CHANNELS, first=7)


def instance(x, scale, b):
    """Each picture by its own numbers."""
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-3) * scale.reshape(-1, 1, 1) + b.reshape(-1, 1, 1)


THREE = {"consumed_inputs": [0, 0, 0]}
case("InstanceNormalization", PICTURE, p(3), f(3), last=1, want=instance, epsilon=1e-3, old=THREE)
case("InstanceNormalization", PICTURE, p(3), f(3), first=6, epsilon=1e-3)
case("LayerNormalization", f(2, 3, 4), p(4), f(4))
case("LayerNormalization", f(2, 3, 4), p(3, 4), f(3, 4), axis=1, epsilon=1e-3)
case("RMSNormalization", f(2, 3, 4), p(4))
case("GroupNormalization", f(2, 6, 4), p(6), f(6), first=21, num_groups=2)
case("LRN", PICTURE, size=3, alpha=0.1, beta=0.6, bias=1.5)
case("LpNormalization", f(3, 4))
case("LpNormalization", f(3, 4), axis=0, p=1)
case("MeanVarianceNormalization", PICTURE)
case("MeanVarianceNormalization", PICTURE, axes=[1, 2])
case("Det", f(2, 3, 3))
case("Einsum", f(3, 4), f(4, 5), equation="ij,jk->ki")
case("NegativeLogLikelihoodLoss", f(3, 5), np.array([1, 0, 4]), reduction="sum")
case("SoftmaxCrossEntropyLoss", f(3, 5), np.array([1, 0, 4]))
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 3, 1, 4]]], "f4")
SCORES = np.array([[[0.9, 0.75, 0.6]]], "f4")
case("NonMaxSuppression", BOXES, SCORES, stated([3], "i8"), stated([0.5]), stated([0.0]))
case("HannWindow HammingWindow BlackmanWindow", stated(10, "i8"))
case("HannWindow", stated(10, "i8"), periodic=0)
case("MelWeightMatrix", *(stated(n, "i8") for n in (8, 16, 8192)), stated(0.0), stated(4096.0))
case("DFT", f(1, 8, 1), last=17, axis=1)
case("DFT", f(1, 8, 1), last=17, axis=1, onesided=1)
case("DFT", f(1, 8, 1), None, stated(1, "i8"), first=20)
case("STFT", f(1, 64, 1), stated(8, "i8"), stated(np.ones(16)), stated(16, "i8"))
case("TfIdfVectorizer", np.array([1, 1, 3, 3, 3, 7], "int32"), mode="TF", min_gram_length=1, max_gram_length=2,
     max_skip_count=0, ngram_counts=[0, 4], ngram_indexes=[0, 1, 2, 3, 4, 5, 6],
     pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7])  # fmt: skip
