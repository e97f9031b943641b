# SPDX-License-Identifier: Apache-2.0
"""The model as TVM's own importer reads it: the baseline of comparisons."""

from __future__ import annotations

import contextlib
import io
import warnings

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx as tvm_from_onnx


def import_as_tvm(model: onnx.ModelProto) -> tvm.IRModule | None:
    """Convert a complete ONNX model with nothing but TVM's importer.

    Parameters
    ----------
    model : onnx.ModelProto
        With all weights inside and static inputs, but not folded: see `from_onnx_as_tvm`.

    Returns
    -------
    tvm.IRModule or None
        None if TVM refuses the model.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return tvm_from_onnx(model)
    except Exception:  # its converters raise whatever they meet
        return None
