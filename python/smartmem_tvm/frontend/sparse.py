# SPDX-License-Identifier: Apache-2.0
"""Convert sparse constants to dense ones."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from smartmem_tvm.frontend.most_numbers import more_than_most


def dense(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """Return a sparse value of a Constant as a dense ``value``; any other attribute unchanged.

    Raises
    ------
    ValueError
        If its places are outside of its sizes, or its sizes are more than a kernel can index.
    """
    if attribute.type != onnx.AttributeProto.SPARSE_TENSOR:
        return attribute
    sparse = attribute.sparse_tensor
    sizes = list(sparse.dims)
    if more_than_most(sizes):
        raise ValueError(f"a sparse constant has the sizes {sizes}, which are too many numbers")
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), sizes)
    found = np.zeros(sizes, values.dtype)
    if flat.size and not 0 <= flat.min() <= flat.max() < found.size:
        raise ValueError(f"a sparse constant of the sizes {sizes} has numbers at places that it does not have")
    found.reshape(-1)[flat] = values
    return onnx.helper.make_attribute("value", numpy_helper.from_array(found, sparse.values.name))
