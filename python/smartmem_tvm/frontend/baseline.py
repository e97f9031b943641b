# SPDX-License-Identifier: Apache-2.0
"""Import a model with TVM's own importer alone, as the baseline of comparisons."""

from __future__ import annotations

import contextlib
import io
import warnings

import tvm

from smartmem_tvm._tvm import end_blocks
from smartmem_tvm.frontend.importer import WeightsImporter
from smartmem_tvm.frontend.onnx_file import Model


def import_as_tvm(model: Model) -> tvm.IRModule | None:
    """Convert an ONNX model with TVM's importer alone, called as in its ``from_onnx``.

    Parameters
    ----------
    model : Model
        With static inputs, but not folded: see `from_onnx_as_tvm`.

    Returns
    -------
    tvm.IRModule or None
        None if TVM refuses the model.
    """
    opset = next((each.version for each in model.proto.opset_import if each.domain in ("", "ai.onnx")), 1)
    importer = WeightsImporter(model.weights, "float32")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importer.from_onnx(model.proto.graph, opset)
    except Exception:  # its converters raise exceptions of many types
        end_blocks(importer.bb)
        return None
