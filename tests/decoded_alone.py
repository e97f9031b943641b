# SPDX-License-Identifier: Apache-2.0
"""Small decoders: compiled for some numbers of tokens, and what ONNX Runtime chooses for one sequence by itself."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

import smartmem_tvm as sm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from decoder_network import WHERE

PLAIN = {"schedule": False, "fuse_attention": False}


def alone(network, prompt, tokens, **changes):
    """Return what ONNX Runtime chooses for one sequence, token by token, with caches of fixed size."""
    one = replace(network, batch=1, tokens=1, form=WHERE, **changes)
    session = onnxruntime.InferenceSession(one.model().SerializeToString(), providers=["CPUExecutionProvider"])
    past, found, feed = {name: np.zeros(one.cache, "float32") for name in one.caches}, [], list(prompt)
    for place in range(len(prompt) + tokens - 1):
        given = {"input_ids": np.array([[feed[place]]]), "position_ids": np.array([[place]])}
        logits, *now = session.run(None, given | past)
        past = dict(zip(one.caches, now))
        if place + 1 >= len(prompt):
            found.append(int(logits[0, -1].argmax()))
            feed.append(found[-1])
    return found


def compiled(network, sizes, **more):
    """Compile a network for some numbers of tokens."""
    names = ("input_ids", "position_ids")
    shapes = [dict.fromkeys(names, (network.batch, size)) for size in sizes]
    return sm.compile(sm.from_onnx(network.model(), shapes, **more), options=sm.Options(caches=True, **PLAIN))
