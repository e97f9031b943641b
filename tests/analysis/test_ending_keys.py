# SPDX-License-Identifier: Apache-2.0
"""Attention of a model with an open length ends at the length: right beside ONNX Runtime with NaN behind it."""

import numpy as np
import pytest
import tvm
from onnx import helper

import smartmem_tvm
from open_models import N, behind, dims, drawn, expected, model, weights
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.kernel import KEYS_END


def attention(random=None, *, width=24, heads=2, each=12, **drawn_kinds):
    """Attention over x (items, n, width); what may be drawn is given by name, too."""
    kinds = {"mask": "", "scores": "", "values": each, "items": 1, "out": ""} | drawn_kinds
    if random is not None:
        width, heads, each = (int(random.integers(*pair)) for pair in ((3, 40), (1, 4), (3, 36)))
        kinds = {
            "mask": random.choice(["", "causal", "bias"]),
            "scores": random.choice(["", "Tanh", "Abs"]),
            "values": int(random.integers(1, 40)),
            "items": int(random.choice([1, 1, 3])),
            "out": random.choice(["", "probabilities", "mean"]),
        }
    nodes, values = [], kinds["values"]
    constants = {
        f"w{name}": weights(width, heads * size) / np.float32(width**0.5)
        for name, size in zip("qkv", (each, each, values))
    }
    constants |= {"split": np.array([0, 0, heads, -1]), "joined": np.array([0, 0, -1]), "zero": np.array([0])}
    constants |= {"scale": np.float32(each**-0.5), "bias": weights(80, 80, seed=5)}
    constants["causal"] = np.triu(np.full((80, 80), -np.inf, "float32"), 1)
    for name in "qkv":
        nodes += [
            ("MatMul", ["x", f"w{name}"], f"{name}0", {}),
            ("Reshape", [f"{name}0", "split"], f"{name}1", {}),
            ("Transpose", [f"{name}1"], name, {"perm": [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]}),
        ]
    nodes += [("MatMul", ["q", "k"], "s0", {}), ("Mul", ["s0", "scale"], last := "s1", {})]
    if kinds["scores"]:
        nodes.append((kinds["scores"], [last], last := "s2", {}))
    if kinds["mask"]:
        nodes += [
            ("Shape", ["x"], "n", {"start": 1, "end": 2}),
            ("Concat", ["n", "n"], "nn", {"axis": 0}),
            ("Slice", [kinds["mask"], "zeros", "nn", "axes"], "m", {}),
            ("Add", [last, "m"], last := "s3", {}),
        ]
        constants |= {"zeros": np.array([0, 0]), "axes": np.array([0, 1])}
    nodes += [
        ("Softmax", [last], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], "o", {}),
        ("Transpose", ["o"], "o1", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["o1", "joined"], "y", {}),
    ]
    if kinds["out"] == "mean":
        nodes.append(("ReduceMean", ["y"], "z", {"axes": [1]}))
    proto = model(nodes, [kinds["items"], N, width], constants)
    if kinds["out"] == "probabilities":
        proto.graph.output.append(helper.make_tensor_value_info("p", 1, None))
    return proto


def ends(found):
    return any(
        isinstance(func, tvm.tirx.PrimFunc) and KEYS_END in (func.attrs or {})
        for func in found.graph.functions.values()
    )


def check(proto, most, lengths, target=None):
    """Compare some lengths at a capacity, with NaN behind them; return the compiled model."""
    found = smartmem_tvm.compile(from_onnx(proto, dims(proto, f"{most - 1}..{most}")), target)
    (function,) = (each["function"] for each in found.open[0]["tiles"] if each["items"] == most)
    for length in lengths:
        x = drawn(proto, length, length)
        got = found.run(behind(x, most, 1), np.array([length]), function=function)[0]
        np.testing.assert_allclose(got[:, :length], expected(proto, x), rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_drawn_attention_at_drawn_lengths(seed):
    random = np.random.default_rng(seed)
    most = int(random.choice([16, 32, 48, 64, 37, 53]))
    check(attention(random), most, [1, 2, most - 1, most, *random.integers(1, most, 3)])


@pytest.mark.parametrize("scores", ["", "Tanh"])
@pytest.mark.parametrize("lanes", ["of this machine", "8"])
def test_keys_end_at_a_vector(scores, lanes):
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}) if lanes == "8" else None
    found = check(attention(scores=scores, mask="causal"), 64, (1, 7, 8, 9, 15, 16, 17, 33, 63, 64), target)
    assert ends(found)


def test_scores_that_something_else_reads_do_not_end():
    assert not ends(check(attention(out="probabilities"), 32, (1, 5, 31)))


def test_a_key_that_is_infinite_or_no_number_is_as_it_was():
    """Rows whose keys are all hidden are NaN for the length, as without a capacity."""
    proto = attention(mask="causal")
    found = check(proto, 32, (3,))
    (function,) = (each["function"] for each in found.open[0]["tiles"] if each["items"] == 32)
    x = drawn(proto, 9, 1)
    x[0, 4] = np.nan
    got = found.run(behind(x, 32, 1), np.array([9]), function=function)[0][:, :9]
    np.testing.assert_allclose(got, expected(proto, x), rtol=1e-4, atol=1e-5, equal_nan=True)
