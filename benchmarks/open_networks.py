#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The networks of docs/shapes.md's table as ONNX files with an open batch or length: needs torch, timm, transformers.

python benchmarks/open_networks.py FOLDER            # weights are drawn at random
python benchmarks/open_networks.py FOLDER bert t5    # some of them

`benchmarks/open_dimension.py --table FOLDER` measures what is there. Networks of transformers have two layers of 256
and a vocabulary of 1,000.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import torch

from smartmem_tvm.tools.timm_networks import import_timm

WIDTH, LAYERS, HEADS, WORDS = 256, 2, 4, 1000
ENCODER = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
ENCODER |= {"num_attention_heads": HEADS, "vocab_size": WORDS}
SHORTEST = 5  # words that the widest window of the CNN takes


class Part(torch.nn.Module):
    """A network of transformers, of whose result one part is returned, or one position of it."""

    def __init__(self, network: torch.nn.Module, part: str, last: bool = False):
        super().__init__()
        self.network, self.part, self.last = network, part, last

    def forward(self, ids, mask):
        """Return the part for ids and a mask."""
        found = getattr(self.network(input_ids=ids, attention_mask=mask), self.part)
        return found[:, -1] if self.last else found


class Heard(torch.nn.Module):
    """Whisper's encoder over spectra of any length, with as many places."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x):
        """Return the features of each place."""
        gelu, net = torch.nn.functional.gelu, self.network
        found = gelu(net.conv2(gelu(net.conv1(x)))).permute(0, 2, 1)
        found = found + net.embed_positions.weight[: found.shape[1]]
        for layer in net.layers:
            found = layer(found, None)
            found = found[0] if isinstance(found, tuple) else found
        return net.layer_norm(found)


class Wave(torch.nn.Module):
    """The features that wav2vec 2.0 makes of a sound."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.network = network

    def forward(self, wave):
        """Return the features of each place."""
        return self.network(wave).last_hidden_state


class Tagger(torch.nn.Module):
    """Recurrent layers over words, and scores of each word."""

    def __init__(self, kind: type[torch.nn.Module], both: bool):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = kind(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True, bidirectional=both)
        self.scores = torch.nn.Linear(WIDTH * (2 if both else 1), 32)

    def forward(self, ids):
        """Return the scores of each word."""
        return self.scores(self.layers(self.words(ids))[0])


class TextCnn(torch.nn.Module):
    """Windows of 3, 4 and 5 words, the largest of each, and scores."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.windows = torch.nn.ModuleList(torch.nn.Conv1d(WIDTH, 100, taps) for taps in (3, 4, SHORTEST))
        self.scores = torch.nn.Linear(300, 10)

    def forward(self, ids):
        """Return the scores of a text."""
        words = self.words(ids).transpose(1, 2)
        found = [torch.relu(each(words)).amax(2) for each in self.windows]
        return self.scores(torch.cat(found, 1))


def _of_transformers(kind: str, part: str = "last_hidden_state", last: bool = False, **settings) -> torch.nn.Module:
    import_timm()  # before transformers, which wants torchvision too
    import transformers

    network = getattr(transformers, kind)
    config = network.config_class(**settings, attn_implementation="eager")
    return Part(network(config), part, last)


def _timm(name: str) -> torch.nn.Module:
    return import_timm().create_model(name, pretrained=False)


def _distilbert() -> torch.nn.Module:
    settings = {"dim": WIDTH, "hidden_dim": 4 * WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "vocab_size": WORDS}
    return _of_transformers("DistilBertModel", **settings)


def _t5() -> torch.nn.Module:
    settings = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 4 * WIDTH, "num_layers": LAYERS}
    return _of_transformers("T5EncoderModel", num_heads=HEADS, **settings)


def _gpt2(last: bool) -> torch.nn.Module:
    settings = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS, "use_cache": False}
    return _of_transformers("GPT2LMHeadModel", "logits", last=last, **settings)


def _albert() -> torch.nn.Module:
    return _of_transformers("AlbertModel", **ENCODER, embedding_size=128)


def _mpnet() -> torch.nn.Module:
    return _of_transformers("MPNetModel", **ENCODER, max_position_embeddings=130)


def _deberta() -> torch.nn.Module:
    settings = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 32}
    return _of_transformers("DebertaV2Model", **ENCODER, **settings, norm_rel_ebd="layer_norm", share_att_key=True)


def _wav2vec() -> torch.nn.Module:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    settings = {each: ENCODER[each] for each in ENCODER if each != "vocab_size"}
    config = Wav2Vec2Config(**settings, conv_dim=[64] * 7, num_conv_pos_embedding_groups=8, num_conv_pos_embeddings=32)
    config._attn_implementation = "eager"
    return Wave(Wav2Vec2Model(config))


def _whisper() -> torch.nn.Module:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    settings = {"d_model": WIDTH, "encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "num_mel_bins": 80}
    config = WhisperConfig(encoder_ffn_dim=4 * WIDTH, max_source_positions=64, **settings)
    config._attn_implementation = "eager"
    return Heard(WhisperEncoder(config))


IDS, MASK, SPECTRA = ("ids", (1, "n")), ("mask", (1, "n")), ("x", (1, 80, "n"))
PICTURES, SOUND = ("x", ("n", 3, 224, 224)), ("wave", (1, "n"))
NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple]] = {
    "resnet18": (lambda: _timm("resnet18"), (PICTURES,)),
    "mobilenetv3_small": (lambda: _timm("mobilenetv3_small_100"), (PICTURES,)),
    "efficientnet_lite0": (lambda: _timm("efficientnet_lite0"), (PICTURES,)),
    "convnext_atto": (lambda: _timm("convnext_atto"), (PICTURES,)),
    "vit_tiny": (lambda: _timm("vit_tiny_patch16_224"), (PICTURES,)),
    "bert": (lambda: _of_transformers("BertModel", **ENCODER), (IDS, MASK)),
    "distilbert": (_distilbert, (IDS, MASK)),
    "roberta": (lambda: _of_transformers("RobertaModel", **ENCODER, max_position_embeddings=130), (IDS, MASK)),
    "t5_encoder": (_t5, (IDS, MASK)),
    "electra": (lambda: _of_transformers("ElectraModel", **ENCODER, embedding_size=128), (IDS, MASK)),
    "albert": (_albert, (IDS, MASK)),
    "mpnet": (_mpnet, (IDS, MASK)),
    "deberta_v2": (_deberta, (IDS, MASK)),
    "gpt2_last": (lambda: _gpt2(last=True), (IDS, MASK)),
    "gpt2_all": (lambda: _gpt2(last=False), (IDS, MASK)),
    "wav2vec2": (_wav2vec, (SOUND,)),
    "whisper_encoder": (_whisper, (SPECTRA,)),
    "gru_tagger": (lambda: Tagger(torch.nn.GRU, both=False), (IDS,)),
    "bilstm_tagger": (lambda: Tagger(torch.nn.LSTM, both=True), (IDS,)),
    "text_cnn": (TextCnn, (IDS,)),
}
"""Name -> how a network is made, and its inputs with their sizes, of which ``n`` stays open."""
_EXAMPLE = {"ids": 24, "mask": 24, "x": 48, "wave": 1200}  # open sizes at which a network is traced; a batch has two


def export(name: str, folder: Path) -> Path:
    """Export a network with weights drawn at random, and return the file."""
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    module, path = build().eval(), folder / f"{name}.onnx"
    given, axes = [], {}
    for each, shape in inputs:
        sizes = [dim if dim != "n" else 2 if not axis else _EXAMPLE[each] for axis, dim in enumerate(shape)]
        ids = {"ids": torch.randint(2, WORDS, sizes), "mask": torch.ones(sizes, dtype=torch.int64)}
        given.append(ids.get(each, torch.rand(sizes)) if each in ids else torch.rand(sizes))
        axes[each] = {shape.index("n"): "n"}
    names = {"input_names": [each for each, _ in inputs], "output_names": ["y"], "opset_version": 17}
    torch.onnx.export(copy.deepcopy(module), tuple(given), path, dynamo=False, dynamic_axes=axes, **names)
    return path


def main() -> None:
    """Export the networks that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NETWORKS)}")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or NETWORKS:
        print(export(name, args.folder), flush=True)


if __name__ == "__main__":
    main()
