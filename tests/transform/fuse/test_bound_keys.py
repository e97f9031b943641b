# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache ends behind the last key that is seen: beside ONNX Runtime, NaN where nothing may read."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import smartmem_tvm as sm
from node_writer import NodeWriter
from smartmem_tvm.analysis.key_span import lengths
from smartmem_tvm.ir.graph import read_log

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
from decoder_network import ELEMENTS, Decoder

LEAST = float(np.finfo("float32").min)


@dataclass(frozen=True)
class Attention:
    """One layer: new rows are scattered into two caches, or into one that holds keys and values.

    Attributes
    ----------
    mask : str
        ``positions`` (a constant of row numbers, 0 or `low` is added), ``chosen`` (`low` in place of scores), ``added``
        and ``given`` (an input of floats, or of booleans), ``window`` (a few keys before each token), ``nested`` (a
        choice of a choice, as for caches that grow in the file), or ``none``.
    guard : bool
        Where a weight is NaN it is 0, as torch's exporter writes it.
    """

    mask: str = "positions"
    heads: int = 4
    key_heads: int = 2
    tokens: int = 1
    capacity: int = 40
    head: int = 8
    low: float = -1e9
    one_cache: bool = False
    scores_out: bool = False
    guard: bool = False

    @property
    def cache(self) -> tuple[int, ...]:
        return 1, self.key_heads, self.capacity, self.head

    @property
    def names(self) -> list[str]:
        return ["past.key"] if self.one_cache else ["past.key", "past.value"]

    def model(self) -> onnx.ModelProto:
        writer = NodeWriter()
        node, constant = writer.node, writer.constant

        tokens, rows = self.tokens, self.capacity
        every = node("Expand", node("Reshape", "places", constant([1, 1, tokens, 1])), node("Shape", "new"))
        kept = [
            node("ScatterElements", each, every, "new", axis=2, name=each.replace("past", "present"))
            for each in self.names
        ]
        group = self.heads // self.key_heads
        wide = [node("Expand", node("Unsqueeze", each, constant([2])), constant([1, 1, group, 1, 1])) for each in kept]
        k, v = [node("Reshape", each, constant([1, self.heads, rows, self.head])) for each in (wide[0], wide[-1])]
        scores = node("MatMul", "q", node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = node("Mul", scores, constant(self.head**-0.5, "float32"))
        if self.mask == "added":
            scores = node("Add", scores, "mask")
        elif self.mask != "none":
            numbers, at = constant(np.arange(rows)), node("Unsqueeze", "places", constant([1, 3]))
            seen = "mask" if self.mask == "given" else node("LessOrEqual", numbers, at)
            if self.mask == "window":
                seen = node("And", seen, node("Greater", numbers, node("Sub", at, constant(3))))
            low, zero = constant(self.low, "float32"), constant(0, "float32")
            if self.mask == "nested":
                last = node("ReduceMax", "places", keepdims=0)
                added = node("Where", seen, zero, low)
                there = node("LessOrEqual", constant(np.arange(rows)), last)
                scores = node("Add", scores, node("Where", there, added, constant(-np.inf, "float32")))
            elif self.mask == "chosen":
                scores = node("Where", seen, scores, low)
            else:
                scores = node("Add", scores, node("Where", seen, zero, low))
        weights = node("Softmax", scores, axis=-1)
        if self.guard:
            weights = node("Where", node("IsNaN", weights), constant([0], "float32"), weights)
        node("MatMul", weights, v, name="out")
        info = helper.make_tensor_value_info
        inputs = [info("q", 1, [1, self.heads, tokens, self.head]), info("places", TensorProto.INT64, [1, tokens])]
        inputs.append(info("new", 1, [1, self.key_heads, tokens, self.head]))
        if self.mask in ("added", "given"):
            inputs.append(info("mask", 1 if self.mask == "added" else TensorProto.BOOL, [1, 1, tokens, rows]))
        inputs += [info(name, 1, self.cache) for name in self.names]
        outputs = [info("out", 1, [1, self.heads, tokens, self.head])]
        outputs += [info(name.replace("past", "present"), 1, self.cache) for name in self.names]
        if self.scores_out:
            outputs.append(info(scores, 1, [1, self.heads, tokens, rows]))
        graph = helper.make_graph(writer.nodes, "attention", inputs, outputs, writer.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def inputs(self, random, first: int, hidden: bool = False) -> dict[str, np.ndarray]:
        """Draw arrays; tokens are at `first` and behind it. `hidden`: the last token sees nothing."""
        places = first + np.arange(self.tokens)[None]
        found = {
            "q": random.standard_normal((1, self.heads, self.tokens, self.head)).astype("float32"),
            "places": places,
            "new": random.standard_normal((1, self.key_heads, self.tokens, self.head)).astype("float32"),
        }
        seen = np.arange(self.capacity) <= places[0][:, None]
        if hidden:
            seen[-1] = False
        if self.mask == "added":
            found["mask"] = np.where(seen, 0, self.low).astype("float32")[None, None]
        elif self.mask == "given":
            found["mask"] = seen[None, None]
        return found | {name: random.standard_normal(self.cache).astype("float32") for name in self.names}


def compiled(attention: Attention, target: str = "llvm"):
    options = sm.Options(caches=True, merge_chains=False)  # chains of small kernels take attention as small as this
    return sm.compile(sm.from_onnx(attention.model()), target, options)


def expected(attention: Attention, inputs: dict) -> np.ndarray:
    session = onnxruntime.InferenceSession(attention.model().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["out"], inputs)[0]


def said(model) -> str:
    (found,) = [each for each in read_log(model.graph) if each["pass"] == "BoundKeys"]
    return found["reason"]


def beyond(attention: Attention, inputs: dict, last: int) -> dict:
    """Return the inputs with NaN in the rows of the caches that no length up to `last` has."""
    end = next(each for each in lengths(attention.capacity) if each > last)
    assert end < attention.capacity
    caches = {name: inputs[name].copy() for name in attention.names}
    for each in caches.values():
        each[:, :, end:] = np.nan
    return {**inputs, **caches}


DRAWN = [
    Attention("positions", tokens=1),
    pytest.param(Attention("positions", 6, 2, 3, 67, 5, low=LEAST), marks=pytest.mark.device),
    Attention("chosen", 3, 1, 2, 48, 12, low=-np.inf),
    Attention("added", 2, 2, 1, 53, 7, low=LEAST, one_cache=True),
    pytest.param(Attention("added", 4, 1, 17, 64, 8), marks=pytest.mark.device),
    Attention("given", 4, 4, 5, 41, 16, low=-np.inf),
    Attention("window", 6, 3, 1, 70, 3),
    Attention("nested", 6, 2, 1, 64, 4, low=LEAST, guard=True),
    Attention("nested", 2, 1, 3, 48, 5, low=-np.inf, guard=True),
]


@pytest.mark.parametrize("attention", DRAWN, ids=lambda a: f"{a.mask}-{a.tokens}-{a.capacity}")
def test_rows_behind_the_last_key_are_not_read(attention):
    model, random = compiled(attention), np.random.default_rng(attention.capacity)
    assert "to the last one" in said(model) and "WithinLength" in {each["name"] for each in model.rules.values()}
    for first in (0, 15, 16, attention.capacity - attention.tokens):
        if first + attention.tokens > attention.capacity:
            continue
        inputs = attention.inputs(random, first)
        want, last = expected(attention, inputs), first + attention.tokens - 1
        np.testing.assert_allclose(model.run_whole(inputs)[0], want, rtol=1e-4, atol=1e-5)
        if last < lengths(attention.capacity)[-2]:
            found = model.run_whole(beyond(attention, inputs, last))[0]
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


ON_GPUS = [
    Attention("positions", 6, 3, 1, 67, 8, guard=True),
    Attention("window", 4, 1, 3, 131, 12, low=LEAST),
    Attention("chosen", 3, 1, 2, 48, 16, low=-np.inf),
    Attention("added", 2, 2, 1, 257, 64, one_cache=True),
]


@pytest.mark.device
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
@pytest.mark.parametrize("attention", ON_GPUS, ids=lambda a: f"{a.mask}-{a.tokens}-{a.capacity}")
def test_on_gpus_no_row_behind_the_last_key_is_read(attention, target):
    model, random = compiled(attention, target), np.random.default_rng(attention.capacity)
    assert "to the last one" in said(model) and "GpuOverKeys" in {each["name"] for each in model.rules.values()}
    for first in (0, 31, attention.capacity - attention.tokens):
        inputs, last = attention.inputs(random, first), first + attention.tokens
        caches = {name: inputs[name].copy() for name in attention.names}
        for each in caches.values():
            each[:, :, last:] = np.nan
        found = model.run_whole({**inputs, **caches})[0]
        np.testing.assert_allclose(found, expected(attention, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.device
def test_on_gpus_many_rows_read_the_whole_cache():
    attention = Attention("positions", 8, 2, 5, 64, 8)
    model, inputs = compiled(attention, "opencl"), attention.inputs(np.random.default_rng(0), 7)
    assert "20 rows share keys" in said(model)
    np.testing.assert_allclose(model.run_whole(inputs)[0], expected(attention, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ("added", "given"))
def test_a_token_that_sees_nothing_takes_the_mean_of_all(mask):
    attention = Attention(mask, tokens=2, head=4, low=-1e9)
    inputs = attention.inputs(np.random.default_rng(1), 3, hidden=True)
    np.testing.assert_allclose(
        compiled(attention).run_whole(inputs)[0], expected(attention, inputs), rtol=1e-4, atol=1e-5
    )


def test_a_mask_that_does_not_hide_reads_all():
    """Softmax gives keys weight where -9 is added to their scores."""
    attention = Attention(low=-9.0)
    inputs = attention.inputs(np.random.default_rng(2), 3)
    np.testing.assert_allclose(
        compiled(attention).run_whole(inputs)[0], expected(attention, inputs), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "attention, reason",
    (
        (Attention("none"), "its scores have no mask"),
        (Attention(capacity=16), "it has few rows"),
        (Attention(scores_out=True), "another kernel reads its scores"),
    ),
    ids=("no mask", "few rows", "scores are a result"),
)
def test_what_cannot_be_proved_reads_all(attention, reason):
    model, inputs = compiled(attention), attention.inputs(np.random.default_rng(3), 2)
    assert said(model).startswith(f"attention reads the whole cache: {reason}")
    np.testing.assert_allclose(model.run_whole(inputs)[0], expected(attention, inputs), rtol=1e-4, atol=1e-5)


def test_layers_share_the_length():
    """Two layers with one mask: the number of keys is computed once."""
    mod = sm.from_onnx(Decoder(layers=2, capacity=32, tokens=1, form=ELEMENTS).model())
    model = sm.compile(mod, options=sm.Options(caches=True, schedule=False))
    calls = model.graph["main"].script().count("R.call_tir(keys_seen,")
    assert calls == 1 and len([each for each in read_log(model.graph) if each["pass"] == "BoundKeys"]) == 2
