# SPDX-License-Identifier: Apache-2.0
"""The inputs and attributes that the converters of ONNX Runtime's operators handle; others are refused by name.

ONNX Runtime's releases add inputs and attributes: a new one would otherwise be ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node

# Operator: inputs; attributes. A minus marks one that no converter handles; the value after its equals sign has no
# effect and is accepted. A star marks an input that may be repeated.
_TABLE = """
Attention: input weights bias mask_index past attention_bias -past_sequence_length; -do_rotary=0 mask_filter_value
  num_heads -past_present_share_buffer=0 qkv_hidden_sizes rotary_embedding_dim scale unidirectional
BiasAdd: X bias skip;
BiasDropout: data bias residual ratio training_mode; seed
BiasGelu: A B;
BiasSoftmax: data bias; axis is_inner_broadcast
BiasSplitGelu: X bias;
BitmaskBiasDropout: data bias residual ratio training_mode; seed
BitmaskDropout: data ratio training_mode; seed
BranchwiseRMSNorm: X scale; epsilon num_branches
CDist: A B; metric
ComplexMul: A B;
ComplexMulConj: A B;
ConvTransposeWithDynamicPads: X W Pads B; auto_pad dilations group kernel_shape output_padding strides
DecoderMaskedMultiHeadAttention: query key value mask_index attention_bias past_key past_value past_sequence_length
  beam_width -cache_indirection bias; mask_filter_value num_heads -output_qk=0 past_present_share_buffer scale
DecoderMaskedSelfAttention: input weights bias mask_index past attention_bias past_sequence_length -beam_width
  -cache_indirection; -do_rotary=0 mask_filter_value num_heads -past_present_share_buffer=0 scale
DequantizeLinear: x x_scale x_zero_point; axis
DynamicQuantizeLSTM: X W R B sequence_lens initial_h initial_c P W_scale W_zero_point R_scale R_zero_point;
  activation_alpha activation_beta activations clip direction hidden_size input_forget
DynamicQuantizeMatMul: A B b_scale b_zero_point bias;
EmbedLayerNormalization: input_ids segment_ids word_embedding position_embedding segment_embedding gamma beta mask
  position_ids; epsilon mask_index_type
ExpandDims: X axis;
FastGelu: X bias;
FusedConv: X W B Z; activation activation_params auto_pad dilations group kernel_shape pads strides
FusedGemm: A B C; activation activation_alpha activation_beta -activation_gamma=0.0 alpha beta transA transB
FusedMatMul: A B; alpha transA transB transBatchA transBatchB
FusedMatMulActivation: A B; activation activation_alpha -activation_axis=-1 activation_beta -activation_gamma=0.0
  alpha transA transB transBatchA transBatchB
GatedAdd: X Y gate -gate_weight;
GatedRMSNorm: X scale gate; activation epsilon
GatedRelativePositionBias: query_layer query_bias rel_pos weight bias eco_a -token_offset; num_heads
GatherBlockQuantized: data indices scales zero_points; bits block_size gather_axis quantize_axis
GatherND: data indices;
Gelu: X;
GemmFastGelu: X W bias;
GemmaRotaryEmbedding: emb q q_rot k k_rot;
GridSample: X Grid; align_corners mode padding_mode
GroupNorm: X gamma beta; activation channels_last epsilon groups
GroupQueryAttention: query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache
  position_ids attention_bias head_sink -k_scale -v_scale q_norm_weight k_norm_weight -query_seqlens; causal
  do_rotary k_norm_epsilon -k_quant_type=NONE -kv_cache_bit_width=0 kv_num_heads local_window_size num_heads
  q_norm_epsilon qk_norm_epsilon -qk_output=0 rotary_interleaved scale -sliding_window_cache=0 smooth_softmax
  softcap -v_quant_type=NONE
Inverse: X;
Irfft: X; -normalized=0 -onesided=1 -signal_ndim=1
IsAllFinite: input*; isinf_only isnan_only
MRotaryEmbedding: input position_ids cos_cache sin_cache; interleaved -is_packed_batching=0 mrope_layout
  mrope_section num_heads rotary_embedding_dim -scale=1.0
MatMulBnb4: A B absmax; K N block_size quant_type training_mode transB
MatMulInteger16: A B;
MatMulIntegerToFloat: A B a_scale b_scale a_zero_point b_zero_point bias;
MatMulNBits: A B scales zero_points g_idx bias; K N accuracy_level bits block_size -weight_prepacked=0
MoE: input router_probs fc1_experts_weights fc1_experts_bias fc2_experts_weights fc2_experts_bias
  fc3_experts_weights fc3_experts_bias; activation_alpha activation_beta activation_type k normalize_routing_weights
  swiglu_fusion swiglu_limit -swiglu_limit_after_activation=0 -use_sparse_mixer=0
MulInteger: A A_zero_point B B_zero_point;
MultiHeadAttention: query key value bias key_padding_mask attention_bias past_key past_value -past_sequence_length
  -cache_indirection; mask_filter_value num_heads scale unidirectional
NhwcConv: X W B; auto_pad dilations group kernel_shape pads strides
NhwcFusedConv: X W B Z; activation activation_params auto_pad dilations group kernel_shape pads strides
NhwcMaxPool: x; auto_pad ceil_mode dilations kernel_shape pads strides
PackedAttention: input weights bias token_offset cumulative_sequence_length attention_bias; num_heads
  qkv_hidden_sizes scale
PackedMultiHeadAttention: query key value bias token_offset cumulative_sequence_length attention_bias;
  mask_filter_value num_heads scale
Pad: data pads value; mode
QAttention: input weight bias input_scale weight_scale mask_index input_zero_point weight_zero_point past;
  -do_rotary=0 mask_filter_value num_heads -past_present_share_buffer=0 scale unidirectional
QEmbedLayerNormalization: input_ids segment_ids word_embedding_quant position_embedding_quant segment_embedding
  gamma_quant beta_quant mask word_embedding_scale position_embedding_scale segment_embedding_scale gamma_scale
  beta_scale word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point gamma_zero_point
  beta_zero_point; epsilon
QGemm: A a_scale a_zero_point B b_scale b_zero_point C y_scale y_zero_point; alpha transA transB
QLinearAdd: A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point;
QLinearAveragePool: X x_scale x_zero_point y_scale y_zero_point; auto_pad ceil_mode channels_last count_include_pad
  kernel_shape pads strides
QLinearConcat: Y_scale Y_zero_point inputs*; axis
QLinearConv: x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B; auto_pad channels_last dilations
  group kernel_shape pads strides
QLinearGlobalAveragePool: X x_scale x_zero_point y_scale y_zero_point; channels_last
QLinearLeakyRelu: X X_scale X_zero_point Y_scale Y_zero_point; alpha
QLinearMul: A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point;
QLinearReduceMean: data data_scale data_zero_point reduced_scale reduced_zero_point; axes keepdims
QLinearSigmoid: X X_scale X_zero_point Y_scale Y_zero_point;
QLinearSoftmax: X X_scale x_zero_point y_scale y_zero_point; axis opset
QLinearWhere: condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point;
QMoE: input router_probs fc1_experts_weights fc1_scales fc1_experts_bias fc2_experts_weights fc2_scales
  fc2_experts_bias fc3_experts_weights fc3_scales fc3_experts_bias fc1_zero_points fc2_zero_points fc3_zero_points
  router_weights fc1_global_scale fc2_global_scale fc1_act_scale fc2_act_scale fc1_act_block_scale
  fc2_act_block_scale; accuracy_level activation_alpha activation_beta activation_type block_size expert_weight_bits
  fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits k normalize_routing_weights quant_type
  swiglu_fusion swiglu_limit -swiglu_limit_after_activation=0 -use_sparse_mixer=0 -weights_prepacked=-1|0
QuantizeLinear: x y_scale y_zero_point; axis
QuickGelu: X; alpha
Range: start limit delta;
ReduceSumInteger: data; axes keepdims
RelativePositionBias: bias_table query_length key_length; is_bidirectional max_distance
RestorePadding: input token_offset;
Rfft: X; -normalized=0 -onesided=1 -signal_ndim=1
RotaryEmbedding: input position_ids cos_cache sin_cache; interleaved -is_packed_batching=0 num_heads
  rotary_embedding_dim -scale=1.0
SampleOp: X;
ScaledSiLU: X scale; alpha
SkipGroupNorm: X gamma beta skip bias; activation channels_last epsilon groups
SkipLayerNormalization: input skip gamma beta bias; epsilon
SkipSimplifiedLayerNormalization: input skip gamma bias; epsilon
SwiGLU: gate up; activation_alpha activation_beta limit round_activation
TorchEmbedding: weight indices padding_idx scale_grad_by_freq;
TransposeMatMul: A B; alpha transA transB
Trilu: X k; upper
UnfoldTensor: input; dim size step
"""


@dataclass(frozen=True)
class Parts:
    """The inputs and attributes of an operator.

    Attributes
    ----------
    inputs : tuple of str
        The inputs in order.
    refused_inputs : frozenset of str
        The inputs that no converter handles.
    variadic : bool
        Whether the last input may be repeated.
    attributes : frozenset of str
        All names.
    refused_attributes : dict
        Attributes that no converter handles -> the values that have no effect.
    """

    inputs: tuple[str, ...]
    refused_inputs: frozenset[str]
    variadic: bool
    attributes: frozenset[str]
    refused_attributes: dict[str, tuple[str, ...]]


def _parsed(inputs: str, attributes: str) -> Parts:
    names, found, refused = inputs.split(), [], {}
    for each in attributes.split():
        name, _, values = each.removeprefix("-").partition("=")
        found.append(name)
        if each.startswith("-"):
            refused[name] = tuple(values.split("|"))
    without = [name.strip("-*") for name in names]
    marked = frozenset(name.strip("-*") for name in names if name.startswith("-"))
    return Parts(tuple(without), marked, bool(names) and names[-1].endswith("*"), frozenset(found), refused)


def _lines() -> dict[str, Parts]:
    joined = _TABLE.replace("\n  ", " ").strip().splitlines()
    rows = (line.partition(":") for line in joined)
    return {f"com.microsoft.{name}": _parsed(*rest.split(";")) for name, _, rest in rows}


PARTS = _lines()
_OWN = "tvm_custom"  # the attribute that TVM's importer adds


def guarded(name: str, convert: Callable[[Node], relax.Expr]) -> Callable[[Node], relax.Expr]:
    """Return a converter that first refuses inputs and attributes that are not in the table."""
    if name not in PARTS:
        return convert

    def guard(node: Node) -> relax.Expr:
        _refuse(node, PARTS[name])
        return convert(node)

    return guard


def _refuse(node: Node, parts: Parts) -> None:
    given = [at for at, each in enumerate(node.inputs) if each is not None]
    if not parts.variadic and any(at >= len(parts.inputs) for at in given):
        raise ValueError(f"it has an input behind {parts.inputs[-1]} that this version does not know")
    for at in given:
        if at < len(parts.inputs) and parts.inputs[at] in parts.refused_inputs:
            raise ValueError(f"its input {parts.inputs[at]} asks for what has no kernels here; export it without")
    for key in node.attrs:
        if key == _OWN:
            continue
        if key not in parts.attributes:
            raise ValueError(f"its attribute {key} is one that this version does not know")
        if key in parts.refused_attributes and not _nothing(node, key, parts.refused_attributes[key]):
            raise ValueError(
                f"its attribute {key} is {_shown(node, key)}, which has no kernels here; export it without"
            )


def _shown(node: Node, key: str) -> str:
    value = node.attrs[key]
    return node.text(key) if isinstance(value, bytes) else str(value)


def _nothing(node: Node, key: str, values: tuple[str, ...]) -> bool:
    value = node.attrs[key]
    if isinstance(value, bytes | str):
        return node.text(key) in values
    return any(value == float(each) for each in values)
