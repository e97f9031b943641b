# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime's own domains without a converter, and a remedy for each."""

from __future__ import annotations

# Reason and remedy -> operators of com.microsoft.
_REASONS = {
    "it runs a decoder in a loop until a text ends, or is a part of such a loop; export the decoder alone and search in"
    " your program": (
        "BeamSearch GreedySearch Sampling WhisperBeamSearch BifurcationDetector NGramRepeatBlock"
        " SpeculativePrefixCommit"
    ),
    "it is about texts; do that before the model": (
        "Tokenizer MurmurHash3 WordConvEmbedding NGramHashMapping VarlenNGramHashMapping"
    ),
    "how much it gives depends on numbers, and shapes are static; do that outside of the model": (
        "Unique DynamicTimeWarping RemovePadding"
    ),
    "its keys and values are in pages that a server shares out; export the model with past and present as tensors": (
        "PagedAttention SparsePagedAttention"
    ),
    "what it attends to is a list of blocks; export the model with dense attention (GroupQueryAttention)": (
        "SparseAttention DynamicSparseAttention SparseAttentionIndexer PackedSparseAttentionIndexer"
        " PackedSparseAttentionIndexerMerge LongformerAttention"
    ),
    "its weights are packed in a format of ONNX Runtime's kernels; quantize the model to MatMulNBits, or to QDQ": (
        "MatMulFpQ4 MatMulPacked GatherPacked MoEPacked MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight"
        " GemmFloat8 QuantizeBFP DequantizeBFP"
    ),
    "its matrices are in the order of one kind of GPU; quantize the model for CPUs": (
        "QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul"
        " QuantizeWithOrder DequantizeWithOrder"
    ),
    "it holds a program that another compiler made; export the model without an execution provider's context": (
        "EPContext Snpe"
    ),
    "it is a fusion of ONNX Runtime's for one family of networks; export the model without its optimizer of"
    " transformers, or without this fusion": (
        "AttnLSTM CausalConvWithState ConvStateReplay CropAndResize DecoderAttention EngramGate GatedDeltaNet"
        " GatedDeltaNetStateReplay HyperConnectionLowRankMix HyperConnectionPostMix HyperConnectionPreMix"
        " LinearAttention LinearAttentionGate Mamba2Verify MatMulNBitsMlp MatMulNBitsQLoRA MatMulNBitsQkv"
        " MaxpoolWithMask MoEGroupRouter RMSNormRotary RouterGateUpProj VarlenCausalConvWithState"
    ),
    "one of its matrices is sparse; make it dense": "SparseToDenseMatMul",
}

# Whole domain -> reason and remedy.
_DOMAINS = {
    "ai.onnx.ml": "it belongs to a model of tables (trees, vectors, categories), which is no network; run it in ONNX"
    " Runtime before or after the network",
    "com.microsoft.nchwc": "ONNX Runtime saved this file in the order of its own kernels for one processor; save it"
    " with the level ORT_ENABLE_EXTENDED, or take the file from before",
    "com.ms.internal.nhwc": "ONNX Runtime saved this file after it had shared it out to a device; take the file from"
    " before",
}

REFUSED = {f"com.microsoft.{name}": why for why, names in _REASONS.items() for name in names.split()}


def reason(label: str) -> str | None:
    """Return why an operator is refused and the remedy; None for any other operator.

    Parameters
    ----------
    label : str
        Its domain and its name, like ``com.microsoft.BeamSearch``.
    """
    return REFUSED.get(label, _DOMAINS.get(label.rpartition(".")[0]))
