# SPDX-License-Identifier: Apache-2.0
"""SmartMem Table 7: the eighteen networks, the paper's kernel counts, and our own limits of kernels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One network of a benchmark suite.

    Attributes
    ----------
    name : str
        Name in the paper's Table 7.
    file : str
        Path of the model below ``models/``, without ``.onnx``.
    paper : tuple of int or None
        Kernels after optimization in the paper's table: TVM, DNNFusion, SmartMem; None if it is not in the table.
    at_most : int or None
        Our limit: one kernel per convolution, matmul (projections of one input merged), normalisation, softmax, pooling
        or other reduction left after constant folding. None if only the compilation is of interest.
    remark : str
        The difference of the published definition that we run from the paper's row.
    large : bool
        Whether its weights take gigabytes: the systems are then measured one after the other, and only on request.
    vision : bool
        Whether it is one of the paper's transformer and hybrid networks on images.
    unscheduled : bool
        Whether to show also the cost of its default graph without schedules; this takes minutes, so only for one
        network.
    """

    name: str
    file: str
    paper: tuple[int, int, int] | None
    at_most: int | None
    remark: str = ""
    large: bool = False
    vision: bool = False
    unscheduled: bool = False

    @property
    def compile_only(self) -> bool:
        """Whether only the compilation is of interest."""
        return self.at_most is None


_CSWIN = "in its CSWin-S form"
_VIT = "ViT-B/16 as published: 86.6 M parameters and 16.9 GMACs, in the paper's table 102.8 M and 21 G"
_CONFORMER = "from the package `conformer`: dim 512, depth 12, 256 frames"
_EVIT = "timm's `efficientvit_b3` has 145 convolutions"

# fmt: off
SMARTMEM18 = (
    #     network           file                 TVM  DNNF  Ours  at most
    Entry("AutoFormer-S",   "autoformer_s",    ( 302,  197,  148), 147, vision=True),
    Entry("BiFormer-S",     "biformer_s",      (1029,  602,  474), 445, vision=True),
    Entry("CrossFormer-S",  "crossformer_s",   ( 308,  196,  155), 130, vision=True),
    Entry("CSWin-S",        "cswin_s",         (1480,  933,  604), 565, vision=True),
    Entry("EfficientViT-B3", "efficientvit_b3", (133,  113,  101), 185, vision=True, remark=_EVIT),
    Entry("FLatten",        "flatten_cswin_s", ( 918,  665,  403), 575, vision=True, remark=_CSWIN),
    Entry("SMT-S",          "smt_s",           ( 844,  469,  332), 371, vision=True),
    Entry("Swin-T",         "swin_t",          ( 374,  207,  158), 119, vision=True, unscheduled=True),
    Entry("ViT",            "vit_b16",         ( 289,  168,  112), 112, vision=True, remark=_VIT),
    Entry("Conformer",      "conformer",       ( 356,  219,  163), 228, remark=_CONFORMER),
    Entry("SD-TextEncoder", "sd_text_encoder", ( 297,  101,   84), 112),
    Entry("SD-UNet",        "sd_unet",         ( 889,  436,  322), 445, large=True),
    Entry("SD-VAEDecoder",  "sd_vae_decoder",  ( 156,  103,   95),  80),
    Entry("Pythia-1B",      "pythia_1b",       ( 681,  525,  355), 150, large=True),
    Entry("ConvNeXt-T",     "convnext_t",      ( 185,   96,   81),  83),
    Entry("RegNet",         "regnet",          ( 155,  122,  122), 133),
    Entry("ResNeXt-50",     "resnext50",       (  58,   55,   55),  56),
    Entry("YOLOv8n",        "yolov8n",         (  88,   75,   68),  70),
)

# Not in the paper's table: BERT, and Swin-T with two and four times the blocks, which show the growth of compile time.
EXTRA = (
    Entry("BERT-base",      "bert_base",       None, 111),
    Entry("Swin-T 2x",      "extra/swin_t_2x", None, None),
    Entry("Swin-T 4x",      "extra/swin_t_4x", None, None),
)
# fmt: on

# The eight networks of the paper's Figure 8, in its order.
_FIGURE_8 = ["autoformer_s", "biformer_s", "efficientvit_b3", "cswin_s", "vit_b16", "convnext_t", "regnet", "resnext50"]

# On a GPU: the paper's kinds of networks, and BERT.
_GPU = ("swin_t", "vit_b16", "convnext_t", "resnext50", "bert_base")

# The networks for comparisons with other compilers. ViT-S/16 is not in the paper's table either.
_VIT_S16 = Entry("ViT-S/16", "extra/vit_s16", None, 112)
_PEERS = ("swin_t", "extra/vit_s16", "convnext_t", "resnext50")

SUITES = {
    "smartmem18": SMARTMEM18 + EXTRA,
    "figure8": tuple(next(entry for entry in SMARTMEM18 if entry.file == file) for file in _FIGURE_8),
    "gpu": tuple(next(entry for entry in SMARTMEM18 + EXTRA if entry.file == file) for file in _GPU),
    "peers": tuple(next(entry for entry in (*SMARTMEM18, _VIT_S16) if entry.file == file) for file in _PEERS),
}
"""Name -> the networks that ``smartmem bench --suite`` runs."""
