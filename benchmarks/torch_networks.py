# SPDX-License-Identifier: Apache-2.0
"""The networks of torch_doors.py: from configurations, with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smartmem_tvm.tools.timm_networks import import_timm

WIDTH, LAYERS, HEADS, WORDS, LENGTH = 64, 2, 4, 1000, 24
"""Of transformers' networks: small, as their kernels are the same in each layer."""
ENCODER = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS}
ENCODER |= {"num_attention_heads": HEADS, "vocab_size": WORDS}
DECODER = {"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS}
DECODER |= {"decoder_attention_heads": HEADS, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH}


@dataclass(frozen=True)
class Network:
    """How one network is made.

    Attributes
    ----------
    build : callable
        Makes the module.
    inputs : tuple
        What it is called with.
    scale : str
        How it differs from the published one; empty if it does not.
    """

    build: Callable[[], torch.nn.Module]
    inputs: tuple[torch.Tensor, ...]
    scale: str = ""


class Outputs(torch.nn.Module):
    """Chosen outputs of a network of transformers, called with inputs by position."""

    def __init__(self, network: torch.nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]):
        super().__init__()
        self.network, self.inputs, self.outputs = network, inputs, outputs

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run it without a cache."""
        options = {"use_cache": False} if hasattr(self.network.config, "use_cache") else {}
        found = self.network(**dict(zip(self.inputs, given)), **options)
        return tuple(found[name] for name in self.outputs)


def of_timm(name: str, size: int = 224) -> Network:
    """A network of timm, as it is published."""
    return Network(lambda: import_timm().create_model(name, pretrained=False), (torch.rand(1, 3, size, size),))


def of_transformers(
    kind: str, settings: dict[str, Any], inputs: dict[str, torch.Tensor], outputs: tuple[str, ...], scale: str
) -> Network:
    """A network of transformers: the class `kind` with its configuration, changed by `settings`."""

    def build() -> torch.nn.Module:
        import_timm()  # before transformers, which wants torchvision too
        import transformers

        network = getattr(transformers, kind)
        return Outputs(network(network.config_class(**settings)), tuple(inputs), outputs)

    return Network(build, tuple(inputs.values()), scale)


def text(**settings: Any) -> tuple[dict, dict]:
    """Settings, and the words that a network of text reads."""
    return settings, {"input_ids": torch.randint(3, WORDS, (1, LENGTH))}


def image(size: int) -> dict[str, torch.Tensor]:
    """What a network of images reads."""
    return {"pixel_values": torch.rand(1, 3, size, size)}


def _detr() -> Network:
    backbone = {"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512]}
    backbone |= {"depths": [2, 2, 2, 2], "layer_type": "basic", "out_features": ["stage4"]}
    settings = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "num_queries": 20}
    settings |= {"backbone_config": backbone, **DECODER}
    return of_transformers(
        "DetrForObjectDetection", settings, image(128), ("logits", "pred_boxes"), f"ResNet-18, {SMALL}, 128 x 128"
    )


SMALL = f"{LAYERS} layers, {WIDTH} wide"
HIDDEN, LOGITS = ("last_hidden_state",), ("logits",)
HALVES = {"hidden_act": "silu", "num_key_value_heads": HEADS // 2, "pad_token_id": 0}
WHISPER = {"vocab_size": WORDS, "max_source_positions": 50, "max_target_positions": LENGTH, "num_mel_bins": 80}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, **DECODER}
WAV2VEC2 = ENCODER | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
T5 = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH, "num_layers": LAYERS}
WORD_IDS = text()[1]
HEARD = {"input_features": torch.rand(1, 80, 100), "decoder_input_ids": WORD_IDS["input_ids"][:, :8]}
TRANSLATED = {**WORD_IDS, "decoder_input_ids": WORD_IDS["input_ids"][:, :8]}
CLIP = {key: ENCODER | {"image_size": 64, "patch_size": 16} for key in ("text_config", "vision_config")}
SEEN = {**WORD_IDS, **image(64)}
OF_TIMM = {
    "TinyViT-5M": of_timm("tiny_vit_5m_224"),
    "Hiera-T": of_timm("hiera_tiny_224"),
    "MaxViT-pico": of_timm("maxvit_rmlp_pico_rw_256", 256),
    "MobileNetV4-S": of_timm("mobilenetv4_conv_small"),
    "EfficientFormerV2-S0": of_timm("efficientformerv2_s0"),
    "ConvNeXt-atto": of_timm("convnext_atto"),
    "ViT-Ti/16": of_timm("vit_tiny_patch16_224"),
    "ResNet-18": of_timm("resnet18"),
    "LeViT-128S": of_timm("levit_128s"),
    "Swin-T": of_timm("swin_tiny_patch4_window7_224"),
}
OF_TRANSFORMERS = {
    "GPT-2": of_transformers(
        "GPT2LMHeadModel",
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS},
        WORD_IDS,
        LOGITS,
        SMALL,
    ),
    "Llama": of_transformers("LlamaForCausalLM", ENCODER | HALVES, WORD_IDS, LOGITS, SMALL),
    "Qwen2": of_transformers("Qwen2ForCausalLM", ENCODER | HALVES, WORD_IDS, LOGITS, SMALL),
    "T5": of_transformers("T5ForConditionalGeneration", T5 | {"num_heads": HEADS}, TRANSLATED, LOGITS, SMALL),
    "CLIP": of_transformers("CLIPModel", CLIP, SEEN, ("logits_per_image", "text_embeds", "image_embeds"), SMALL),
    "BERT": of_transformers("BertModel", ENCODER, WORD_IDS, HIDDEN, SMALL),
    "Whisper": of_transformers("WhisperForConditionalGeneration", WHISPER, HEARD, LOGITS, SMALL),
    "wav2vec 2.0": of_transformers("Wav2Vec2Model", WAV2VEC2, {"input_values": torch.rand(1, 4000)}, HIDDEN, SMALL),
    "SegFormer-B0": of_transformers("SegformerForSemanticSegmentation", {}, image(128), LOGITS, "128 x 128"),
    "DETR": _detr(),
}
NETWORKS = OF_TIMM | OF_TRANSFORMERS
"""Name -> how it is made."""
