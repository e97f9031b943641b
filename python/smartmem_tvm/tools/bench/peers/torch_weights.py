# SPDX-License-Identifier: Apache-2.0
"""Load the weights of an ONNX file into the torch network that it was exported from, so that both compute the same.

An exporter keeps the name of a weight whose value it keeps. Constants that it computes from weights get new names:
transposed matrices, gathered bias tables of windowed attention, batch norms folded into the convolution before them.
These constants are in the graph in the order in which the network uses its parameters, which for these networks is the
order of their definition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ....errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import torch

_FOLDED = "{}.weight_bias"  # the exporter's name for the bias of a convolution with a folded batch norm
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def load_weights(module: torch.nn.Module, model: onnx.ModelProto) -> None:
    """Load the weights of a torch network's ONNX export into it, in place.

    Parameters
    ----------
    module : torch.nn.Module
        The network; a folded batch norm is set to add only its bias from the file.
    model : onnx.ModelProto
        The model, with data in every initializer.

    Raises
    ------
    UserError
        If a parameter has no counterpart in the file.
    """
    import torch

    arrays = _floats_in_order_of_use(model)
    with torch.no_grad():
        _unfold_norms(module, arrays)
        _spread_tables(module, arrays)
        state = module.state_dict()
        missing = []
        for name, tensor in state.items():
            if name in arrays and arrays[name].shape == tuple(tensor.shape):
                tensor.copy_(torch.from_numpy(arrays.pop(name)))
            elif name.rpartition(".")[2] not in _STATISTICS:
                missing.append(name)
        for name in _without_norms(module, missing):
            state[name].copy_(torch.from_numpy(_take(arrays, tuple(state[name].shape), name)))


def _floats_in_order_of_use(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    from onnx import TensorProto, numpy_helper

    tensors = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    used = dict.fromkeys(name for node in model.graph.node for name in node.input if name in tensors)
    return {name: numpy_helper.to_array(tensors[name]).copy() for name in used}


def _unfold_norms(module: torch.nn.Module, arrays: dict[str, np.ndarray]) -> None:
    """Set the norm after a convolution with a folded bias to add only this bias."""
    import torch

    bias = None
    for name, each in module.named_modules():
        if isinstance(each, torch.nn.Conv2d):
            bias = arrays.pop(_FOLDED.format(name), None)
        elif isinstance(each, torch.nn.BatchNorm2d) and bias is not None:
            each.weight.fill_(1.0)
            each.bias.copy_(torch.from_numpy(bias))
            each.running_mean.fill_(0.0)
            each.running_var.fill_(1.0 - each.eps)
            bias = None


def _without_norms(module: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """Return the parameters other than those of batch norms, which `_unfold_norms` sets."""
    import torch

    return [
        name for name in names if not isinstance(module.get_submodule(name.rpartition(".")[0]), torch.nn.BatchNorm2d)
    ]


def _spread_tables(module: torch.nn.Module, arrays: dict[str, np.ndarray]) -> None:
    """Replace the bias table of windowed attention by the gathered one from the file, a row for each pair of positions.

    The network still gathers rows from it, one by one in order.
    """
    import torch

    for name, each in module.named_modules():
        index = getattr(each, "relative_position_index", None)
        if index is None:
            continue
        rows, heads = index.numel(), each.relative_position_bias_table.shape[1]
        values = _take(arrays, (rows, heads), f"{name}.relative_position_bias_table")
        each.relative_position_bias_table = torch.nn.Parameter(torch.from_numpy(values), requires_grad=False)
        index.copy_(torch.arange(rows).reshape(index.shape))
        arrays[f"{name}.relative_position_bias_table"] = values  # for lookups by name


def _take(arrays: dict[str, np.ndarray], shape: tuple[int, ...], parameter: str) -> np.ndarray:
    """Remove and return the first constant that is a parameter of this shape in another form."""
    for name, array in arrays.items():
        values = None if name == parameter else _in_shape(array, shape)
        if values is not None:
            del arrays[name]
            return values.copy()
    raise UserError(f"The ONNX file holds nothing of shape {list(shape)} for torch's '{parameter}'; export it again.")


def _in_shape(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant in the shape of its parameter, None if it does not fit."""
    if array.ndim == 4 and len(shape) == 2 and (array.shape[2] * array.shape[3], array.shape[1]) == shape:
        return array[0].transpose(1, 2, 0).reshape(shape)  # a gathered bias table with the heads first
    if array.ndim == len(shape) == 2 and array.shape == shape and shape[0] != shape[1]:
        return array  # a gathered bias table
    if array.ndim == len(shape) == 2 and array.T.shape == shape:
        return array.T
    if [n for n in array.shape if n != 1] == [n for n in shape if n != 1] and array.ndim != 2:
        return array.reshape(shape)
    return None
