# SPDX-License-Identifier: Apache-2.0
"""GGUF files: weights to the bit, networks beside numpy, ids, and what is refused."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import smartmem_tvm as sm
from gguf_files import Network, stored
from smartmem_tvm.cli import main
from smartmem_tvm.frontend import read_model, run_onnxruntime
from smartmem_tvm.frontend.gguf_codes import FORMATS, packed
from smartmem_tvm.frontend.inputs import random_inputs

PROMPT = [3, 1, 4, 1, 5]
K = {"width": 256, "inner": 256, "head": 64}


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_are_those_of_the_package(kind):
    form, random = FORMATS[kind], np.random.default_rng(0)
    type_ = gguf.GGMLQuantizationType[kind]
    _, count = gguf.GGML_QUANT_SIZES[type_]
    data, _ = stored(random, (6, 512), kind)
    coded = form.coded(np.ascontiguousarray(data).reshape(-1, count), 6)
    assert coded.codes.shape == (6, 512) and coded.scales.shape == (6, 512 // form.group)
    np.testing.assert_array_equal(coded.floats(form.zero), dequantize(data, type_).reshape(6, 512))
    assert coded.codes.max() < 2**form.bits and packed(coded.codes, form.bits).shape == (6, 512 * form.bits // 8)
    order = random.permutation(6)
    np.testing.assert_array_equal(coded.rows(order).floats(form.zero), coded.floats(form.zero)[order])


@pytest.mark.device  # tens of kernels each; the next but one is a smaller network
@pytest.mark.parametrize(
    "network",
    [
        Network(),
        Network("qwen3", "Q4_K", "Q6_K", None, **K),
        Network("qwen2", "F16", "BF16", "F32", factors=True, scaling=2.0),
        Network("llama", "Q5_K", "Q3_K", "Q6_K", layers=1, **K),
    ],
    ids=lambda network: f"{network.architecture} {network.kind}",
)
def test_scores_and_ids_are_those_of_numpy(network, tmp_path):
    reference = network.write(tmp_path / "model.gguf")
    mod = sm.from_gguf(tmp_path / "model.gguf", tokens=(1, 4), rows=24)
    compiled = sm.compile(mod, options=sm.Options(caches=True))
    decoder = sm.Decoder(compiled)
    wanted = reference.scores(PROMPT)[-1]
    np.testing.assert_allclose(decoder.feed(PROMPT), wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
    assert decoder.capacity == 24
    assert decoder.generate(PROMPT, 8) == reference.greedy(PROMPT, 8)
    coded = [each["name"] for each in compiled.rules.values()].count("CodedProduct")
    assert coded >= 9 if network.kind in FORMATS else not coded
    if network.kind in FORMATS:
        bits = (
            sum(w.nbytes for w in compiled.weights) * 8 / sum(np.prod(shape) for shape, _ in network.tensors().values())
        )
        assert bits < 14  # 32 if a weight were expanded


@pytest.mark.parametrize(
    ("kind", "table", "output"),
    [
        ("Q8_0", "Q4_K", None),
        ("Q6_K", "Q8_0", "Q4_K"),
        ("TQ1_0", "F32", "Q4_1"),
        ("Q5_K", "Q6_K", None),
        ("Q3_K", "Q2_K", "Q5_1"),
        ("IQ4_XS", "IQ4_NL", "TQ2_0"),
        ("MXFP4", "Q5_K", "Q5_0"),
        ("Q2_K", "Q5_1", "TQ1_0"),
    ],
)
def test_the_graph_is_one_that_onnxruntime_runs(kind, table, output, tmp_path):
    """Every format as a table and as a product; formats that are not kept are expanded."""
    network = Network("llama", kind, table, output, layers=1, key_heads=4, seed=1, **K)
    reference = network.write(tmp_path / "model.gguf")
    model = read_model(tmp_path / "model.gguf", {"input_ids": (1, 5), "past_key_values.0.key": (1, 4, 8, 64)})
    inputs = dict(random_inputs(model.inputs, {}, 0))
    inputs |= {"input_ids": np.array([PROMPT]), "position_ids": np.arange(5)[None]}
    scores = run_onnxruntime(model, inputs)[0][0]
    wanted = reference.scores(PROMPT)
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_folder_generates(tmp_path, capsys):
    reference = Network(layers=1, context=32).write(tmp_path / "model.gguf")
    out = str(tmp_path / "out")
    assert main(["compile", str(tmp_path / "model.gguf"), "-o", out, "--cache", "auto"]) == 0
    capsys.readouterr()
    assert main(["generate", out, "--prompt-ids", "3,1,4", "--tokens", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(map(str, reference.greedy([3, 1, 4], 4)))
    assert sm.Decoder(out).capacity == 32


@pytest.mark.parametrize(
    ("network", "how", "why"),
    [
        (Network("gemma"), {}, "the architecture 'gemma'"),
        (Network(table="I32"), {}, "the format I32"),
        (Network(), {"leave_out": "blk.1.ffn_up.weight"}, "no tensor 'blk.1.ffn_up.weight'"),
        (Network(), {"add": {"blk.0.ffn_gate_inp.weight": ((4, 64), "F32")}}, "'blk.0.ffn_gate_inp.weight' belongs to"),
        (Network(more={"expert_count": 8}), {}, "sets llama.expert_count to 8"),
        (Network(more={"rope.scaling.type": "yarn"}), {}, "scaling 'yarn'"),
        (Network(more={"rope.dimension_count": 8}), {}, "a part of each head"),
    ],
)
def test_what_is_refused(network, how, why, tmp_path, capsys):
    network.write(tmp_path / "model.gguf", **how)
    assert main(["compile", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert why in error and "model.gguf" in error and error.count(". ") <= 1


@pytest.mark.parametrize("size", [0, 3, 20, 300, 5000])
def test_a_truncated_file_is_refused(size, tmp_path):
    Network().write(tmp_path / "whole.gguf")
    (tmp_path / "model.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:size])
    with pytest.raises(sm.UserError, match=r"model\.gguf is truncated or no GGUF file"):
        sm.from_gguf(tmp_path / "model.gguf")


def test_a_file_that_is_missing_or_of_another_kind(tmp_path):
    with pytest.raises(sm.UserError, match="does not exist"):
        sm.from_gguf(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(b"PK" * 100)
    with pytest.raises(sm.UserError, match="no GGUF file"):
        sm.from_gguf(tmp_path / "model.gguf")


def test_the_package_is_named_where_it_is_missing(tmp_path, monkeypatch):
    Network().write(tmp_path / "model.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(sm.UserError, match=r"smartmem-tvm\[gguf\]"):
        sm.from_gguf(tmp_path / "model.gguf")
