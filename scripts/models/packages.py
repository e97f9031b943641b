# SPDX-License-Identifier: Apache-2.0
"""Networks of transformers, diffusers, ultralytics and conformer, in the configurations of SmartMem's Table 7."""

from __future__ import annotations

from collections.abc import Callable

import torch

from smartmem_tvm.tools.timm_networks import import_timm

from .network import Network
from .weights import GPT2, SILU_CONVOLUTION, SQUEEZENET_CONVOLUTION

SEQUENCE = 128
FRAMES = 256
PIXELS = 640
# Stable Diffusion 1.5: tokens and width of the text, height and width of the latent image. At 32, an image of
# 256 pixels, the multiplications are those of the paper's table.
TOKENS, TEXT, LATENT = 77, 768, 32


class Wrapped(torch.nn.Module):
    """A module whose forward is a function of the module and the inputs."""

    def __init__(self, inner: torch.nn.Module, call: Callable[..., object]) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> object:
        """Call the function."""
        return self.call(self.inner, *inputs)


def text(name: str, length: int) -> dict[str, torch.Tensor]:
    """Return token numbers as example input."""
    return {name: torch.ones(1, length, dtype=torch.int64)}


def bert(attention: str, names: tuple[str, ...]) -> Network:
    """Return BERT-base as an encoder (last hidden state); `names` are its inputs."""

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(attn_implementation=attention), add_pooling_layer=False)

    return Network(build, {name: torch.ones(1, SEQUENCE, dtype=torch.int64) for name in names})


def sd_text_encoder() -> Network:
    """Return the text encoder of CLIP ViT-L/14: the last hidden state, which is all that Stable Diffusion uses."""

    def build() -> torch.nn.Module:
        from transformers import CLIPTextConfig, CLIPTextModel

        shape = {"hidden_size": TEXT, "intermediate_size": 4 * TEXT, "num_hidden_layers": 12}
        clip = CLIPTextModel(CLIPTextConfig(num_attention_heads=12, attn_implementation="eager", **shape))
        return Wrapped(clip, lambda clip, ids: clip(ids).last_hidden_state)

    return Network(build, text("input_ids", TOKENS))


def sd_unet() -> Network:
    """Return the denoising network of Stable Diffusion 1.5."""

    def build() -> torch.nn.Module:
        from diffusers import UNet2DConditionModel

        unet = UNet2DConditionModel(cross_attention_dim=TEXT)
        return Wrapped(unet, lambda unet, *inputs: unet(*inputs, return_dict=False)[0])

    inputs = {
        "sample": torch.zeros(1, 4, LATENT, LATENT),
        "timestep": torch.ones(1, dtype=torch.int64),
        "encoder_hidden_states": torch.zeros(1, TOKENS, TEXT),
    }
    return Network(build, inputs)


def sd_vae_decoder() -> Network:
    """Return the decoder of Stable Diffusion 1.5's autoencoder, from latent to image."""

    def build() -> torch.nn.Module:
        from diffusers import AutoencoderKL

        widths = (128, 256, 512, 512)
        down, up = (tuple(f"{way}Block2D" for _ in widths) for way in ("DownEncoder", "UpDecoder"))
        vae = AutoencoderKL(block_out_channels=widths, down_block_types=down, up_block_types=up, layers_per_block=2)
        del vae.encoder, vae.quant_conv
        return Wrapped(vae, lambda vae, latent: vae.decoder(vae.post_quant_conv(latent)))

    return Network(build, {"latent_sample": torch.zeros(1, 4, LATENT, LATENT)})


def gpt_neox(width: int, layers: int, heads: int) -> Network:
    """Return a GPT-NeoX with the vocabulary of Pythia: the logits of each of 128 tokens, without a cache."""

    def build() -> torch.nn.Module:
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

        shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        shape |= {"intermediate_size": 4 * width, "vocab_size": 50304, "max_position_embeddings": 2048}
        config = GPTNeoXConfig(attn_implementation="eager", **shape)
        return Wrapped(GPTNeoXForCausalLM(config), lambda model, ids: model(ids, use_cache=False).logits)

    return Network(build, text("input_ids", SEQUENCE))


def gpt2() -> Network:
    """Return GPT-2 of 124 million parameters: the logits of each of 128 tokens, without a cache."""

    def build() -> torch.nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        gpt = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
        for block in gpt.transformer.h:  # the mask of 1024 tokens would be most of the file
            block.attn.bias = block.attn.bias[:, :, :SEQUENCE, :SEQUENCE]
        return Wrapped(gpt, lambda gpt, ids: gpt(ids, use_cache=False).logits)

    return Network(build, text("input_ids", SEQUENCE), statistics=GPT2)


def convbert() -> Network:
    """Return ConvBERT-base as an encoder (last hidden state)."""

    def build() -> torch.nn.Module:
        from transformers import ConvBertConfig, ConvBertModel

        return Wrapped(ConvBertModel(ConvBertConfig()), lambda model, ids: model(ids).last_hidden_state)

    return Network(build, text("input_ids", SEQUENCE))


def ibert() -> Network:
    """Return I-BERT-base as an encoder (last hidden state), in floats, as it is before it is quantized."""

    def build() -> torch.nn.Module:
        from transformers import IBertConfig, IBertModel

        model = IBertModel(IBertConfig(quant_mode=False), add_pooling_layer=False)
        return Wrapped(model, lambda model, ids: model(ids).last_hidden_state)

    return Network(build, text("input_ids", SEQUENCE))


def conformer() -> Network:
    """Return the encoder of the package `conformer`, from frames of width 512 to frames of width 512."""

    def build() -> torch.nn.Module:
        from conformer import Conformer

        return Conformer(dim=512, depth=12)

    return Network(build, {"x": torch.zeros(1, FRAMES, 512)})


def squeezenet() -> Network:
    """Return torchvision's SqueezeNet 1.1."""

    def build() -> torch.nn.Module:
        import_timm()  # declares torchvision's operators where its library does not load
        from torchvision.models import squeezenet1_1

        return squeezenet1_1()

    return Network(build, {"x": torch.zeros(1, 3, 224, 224)}, convolution=SQUEEZENET_CONVOLUTION)


def yolov8n() -> Network:
    """Return YOLOv8n with the output that its package exports: boxes and class scores of 8400 anchors."""

    def build() -> torch.nn.Module:
        from ultralytics.nn.modules import C2f, Detect
        from ultralytics.nn.tasks import DetectionModel

        model = DetectionModel("yolov8n.yaml", verbose=False)
        for module in model.modules():
            if isinstance(module, Detect):
                module.export, module.format = True, "onnx"
            if isinstance(module, C2f):
                module.forward = module.forward_split
        return model

    return Network(build, {"images": torch.zeros(1, 3, PIXELS, PIXELS)}, convolution=SILU_CONVOLUTION)
