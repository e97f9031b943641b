# SPDX-License-Identifier: Apache-2.0
"""Options of ONNX Runtime where it is the reference: one thread, and no saturation that ONNX does not define."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

_FATAL = 4


def session_options(level: onnxruntime.GraphOptimizationLevel | None = None) -> onnxruntime.SessionOptions:
    """Return options of a session that prints nothing and whose products of bytes are those of ONNX.

    On x86 CPUs without dot products of bytes ONNX Runtime adds pairs of products in 16 bits, which saturate. With
    ``session.x64quantprecision`` it uses its slower, exact kernels there.

    Parameters
    ----------
    level : onnxruntime.GraphOptimizationLevel, optional
        By default ONNX Runtime's own.
    """
    import onnxruntime  # here: the import takes 0.2 s, and most models do not need it

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    if level is not None:
        options.graph_optimization_level = level
    return options
