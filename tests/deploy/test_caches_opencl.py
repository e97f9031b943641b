# SPDX-License-Identifier: Apache-2.0
"""Caches in the memory of an OpenCL device: rows are written there, and stay between runs."""

import sys

import numpy as np
import pytest

import smartmem_tvm as sm
from cache_updates import Update, expected
from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from decoder_network import ELEMENTS, Decoder

TARGETS = ("opencl", "opencl-texture")  # with textures, caches are in buffers beside them


@pytest.mark.device
@pytest.mark.parametrize(
    "update",
    [
        Update("where", (1, 3, 8, 4), 2, 1),
        Update("elements", (1, 3, 8, 4), 2, 2),
        Update("pairs", (3, 2, 8, 4), 2, 2, own=True),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_are_written_on_the_device(update, target):
    session = sm.compile(sm.from_onnx(update.model()), target, sm.Options(caches=True)).session()
    random = np.random.default_rng(0)
    past = np.zeros(update.shape, "float32")
    for _ in range(4):
        arrays = {**update.inputs(random), "past": past}
        total, past = expected(update.model(), arrays)
        (found,) = session.run(arrays["new"], arrays["rows"])
        np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(session.caches["past"].numpy(), past)


@pytest.mark.device
@pytest.mark.parametrize("target", TARGETS)
def test_a_decoder_writes_the_ids_of_a_cpu(target):
    """Prompts in parts, padded ones, and two decoders: a recorded run of kernels holds the addresses of its own."""
    network = Decoder(layers=1, tokens="tokens", form=ELEMENTS, capacity=32)
    shapes = [{"input_ids": (1, count), "position_ids": (1, count)} for count in (1, 4)]
    mod = sm.from_onnx(network.model(), shapes)
    plain = sm.Decoder(sm.compile(mod, options=sm.Options(caches=True, schedule=False, fuse_attention=False)))
    compiled = sm.compile(mod, target, sm.Options(caches=True))
    decoders = [sm.Decoder(compiled) for _ in range(2)]
    for prompt in ([5], [1, 2, 3], [7, 0, 9, 9, 4, 1]):
        want = plain.generate(prompt, 8)
        assert [each.generate(prompt, 8) for each in decoders] == [want, want]


@pytest.mark.device
def test_sequences_on_a_device_are_those_of_a_cpu():
    """Of lengths of their own: rows of each are at other places in one recorded run."""
    network = Decoder(layers=1, tokens="tokens", form=ELEMENTS, batch=2)
    shapes = [{"input_ids": (2, count), "position_ids": (2, count)} for count in (1, 4)]
    mod = sm.from_onnx(network.model(), shapes)
    plain = sm.Decoder(sm.compile(mod, options=sm.Options(caches=True, schedule=False, fuse_attention=False)))
    decoder = sm.Decoder(sm.compile(mod, "opencl", sm.Options(caches=True)))
    for prompts in ([[5], [1, 2, 3]], [[7, 0, 9, 9, 4, 1], [2, 2]]):
        assert decoder.generate(prompts, 8) == plain.generate(prompts, 8)
