# SPDX-License-Identifier: Apache-2.0
"""Converters of this package: for operators that TVM's importer lacks, converts wrongly, or makes opaque.

A converter takes a `Node` and returns a Relax expression (a ``relax.Tuple`` for several outputs), or None to leave the
node to TVM's own converter. To refuse a node it raises ValueError with the rest of the sentence "cannot be imported,
..."; the importer adds the name of the node. Each family of operators has one file, whose table ``CONVERTERS`` maps
ONNX's name to the function; operators of another domain are written ``com.microsoft.FastGelu``.
"""

from smartmem_tvm.frontend.converters import (
    along_axis,
    arithmetic,
    boxes,
    casts,
    choice,
    col2im,
    contrib,
    contrib_attention,
    contrib_bits,
    contrib_channels_last,
    contrib_decoder,
    contrib_experts,
    contrib_gates,
    contrib_movement,
    contrib_norms,
    contrib_packed,
    contrib_positions,
    contrib_products,
    contrib_quantized,
    contrib_rotary,
    detection,
    elementwise,
    integer_products,
    movement,
    normalization,
    qlinear,
    quantization,
    recurrent,
    recurrent_quantized,
    reductions,
    resize,
    sampling,
    scatter,
    signal,
    windows,
)
from smartmem_tvm.frontend.converters.contrib_parts import guarded
from smartmem_tvm.frontend.converters.node import Node

__all__ = ["CONVERTERS", "Node"]

_FAMILIES = (
    along_axis,
    arithmetic,
    boxes,
    casts,
    choice,
    col2im,
    contrib,
    contrib_attention,
    contrib_bits,
    contrib_channels_last,
    contrib_decoder,
    contrib_experts,
    contrib_gates,
    contrib_movement,
    contrib_norms,
    contrib_packed,
    contrib_positions,
    contrib_products,
    contrib_quantized,
    contrib_rotary,
    detection,
    elementwise,
    integer_products,
    movement,
    normalization,
    qlinear,
    quantization,
    recurrent,
    recurrent_quantized,
    reductions,
    resize,
    sampling,
    scatter,
    signal,
    windows,
)

CONVERTERS = {name: guarded(name, convert) for family in _FAMILIES for name, convert in family.CONVERTERS.items()}
