# SPDX-License-Identifier: Apache-2.0
"""By their written definition: ONNX Runtime has no kernels for packed sequences on a CPU."""

import numpy as np
import pytest

from against_onnxruntime import check_contrib

F = "float32"
HEADS, SIZE, LENGTH = 4, 8, 4
WIDTH = HEADS * SIZE
LENGTHS = [1, 3, 4]
TOKENS = sum(LENGTHS)


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def _packing():
    places = [batch * LENGTH + at for batch, length in enumerate(LENGTHS) for at in range(length)]
    places += [at for at in range(len(LENGTHS) * LENGTH) if at not in places]
    return {"o": np.array(places, "int32").reshape(-1, LENGTH), "c": np.array([0, *np.cumsum(LENGTHS)], "int32")}


def _attention(query, key, value, bias=None, scale=None):
    """Sequence by sequence."""
    results, begin = [], 0
    for at, length in enumerate(LENGTHS):
        rows = slice(begin, begin + length)
        q, k, v = (each[rows].reshape(length, HEADS, -1).transpose(1, 0, 2) for each in (query, key, value))
        scores = q @ k.transpose(0, 2, 1) * (scale or q.shape[-1] ** -0.5)
        if bias is not None:
            scores = scores + bias[min(at, len(bias) - 1), :, :length, :length]
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        results.append((shares @ v).transpose(1, 0, 2).reshape(length, -1))
        begin += length
    return [np.concatenate(results).astype(F)]


@pytest.mark.parametrize(("bias", "scale"), [(None, None), (1, 0.2), (3, None)])
def test_attention_with_its_projections(bias, scale):
    x, w, b = _floats(TOKENS, 24), _floats(24, 3 * WIDTH, seed=1) / 3, _floats(3 * WIDTH, seed=2)
    score = None if bias is None else _floats(bias, HEADS, LENGTH, LENGTH, seed=3)
    wanted = _attention(*np.split(x @ w + b, 3, 1), score, scale)
    arrays = {"x": x, **_packing(), **({} if score is None else {"s": score})}
    names = "x w b o c" + ("" if score is None else " s")
    options = {"num_heads": HEADS, **({} if scale is None else {"scale": scale})}
    check_contrib("PackedAttention", arrays, {"y": F}, {"w": w, "b": b}, names, 5e-6, wanted, **options)


def test_attention_whose_values_are_of_another_size_and_whose_packing_is_known():
    x, w, b = _floats(TOKENS, 24), _floats(24, 64, seed=1) / 3, _floats(64, seed=2)
    wanted = _attention(*np.split(x @ w + b, [16, 32], 1))
    given = {"w": w, "b": b, **_packing()}
    options = {"num_heads": HEADS, "qkv_hidden_sizes": [16, 16, 32]}
    check_contrib("PackedAttention", {"x": x}, {"y": F}, given, "x w b o c", 5e-6, wanted, **options)


@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_three_tensors(bias):
    arrays = {"q": _floats(TOKENS, WIDTH), "k": _floats(TOKENS, WIDTH, seed=1), "v": _floats(TOKENS, 16, seed=2)}
    parts = [_floats(array.shape[1], seed=at) * bias for at, array in enumerate(arrays.values())]
    wanted = _attention(*(array + part for array, part in zip(arrays.values(), parts)))
    names = f"q k v {'b' if bias else '_'} o c"
    given = {"b": np.concatenate(parts)} if bias else {}
    check_contrib(
        "PackedMultiHeadAttention", arrays | _packing(), {"y": F}, given, names, 5e-6, wanted, num_heads=HEADS
    )


def test_attention_of_one_tensor_of_heads():
    tensors = [_floats(TOKENS, WIDTH, seed=at) for at in range(3)]
    together = np.stack([each.reshape(TOKENS, HEADS, SIZE) for each in tensors], 2)
    arrays, options = {"q": together, **_packing()}, {"num_heads": HEADS}
    check_contrib(
        "PackedMultiHeadAttention", arrays, {"y": F}, {}, "q _ _ _ o c", 5e-6, _attention(*tensors), **options
    )


def test_tokens_go_back_to_where_they_were():
    x, packing = _floats(TOKENS, 6), _packing()
    wanted = np.zeros((len(LENGTHS) * LENGTH, 6), F)
    wanted[packing["o"].ravel()[:TOKENS]] = x
    wanted = wanted.reshape(len(LENGTHS), LENGTH, 6)
    check_contrib("RestorePadding", {"x": x, "o": packing["o"]}, {"y": F}, wanted=[wanted])
