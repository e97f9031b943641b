# SPDX-License-Identifier: Apache-2.0
"""Cut an ONNX model down to a small one that still fails; the caller defines failure."""

from .case import Case
from .reduce import reduce_model

__all__ = ["Case", "reduce_model"]
