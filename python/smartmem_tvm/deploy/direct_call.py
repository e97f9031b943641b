# SPDX-License-Identifier: Apache-2.0
"""A fast call of a function whose inputs and outputs are plain tensors on this CPU, with as few copies as possible.

The general checks, moves and copies (`arguments`) take ten times as long as a small kernel. This class prepares
everything that is known before a call. It leaves unusual inputs to the general way, which also reports errors.

A kernel reads an input in place if the input is contiguous and begins at a multiple of 64 bytes. Arrays of numpy begin
at multiples of 16, so most are copied, into a buffer that is kept, since an allocation would take longer than the copy.
Outputs of this package begin at multiples of 64: one that becomes an input again is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm_ffi import Array, from_dlpack

from ..ir.sizes import WEIGHT_ALIGNMENT
from ..tensor_arrays import array_of
from .arguments import Parameter, TensorKind, foreign
from .outputs import Output

_INEXACT = WEIGHT_ALIGNMENT - 1  # address bits that must be zero
_CPU = tvm.cpu()


class DirectCall:
    """A direct call of a function of a virtual machine.

    Parameters
    ----------
    function : callable
        The function; it takes tensors in the order of the parameters.
    params : sequence of Parameter
        Parameters that `is_plain` accepts.
    outputs : sequence of Output
        The outputs; those without memory of their own are copied.
    """

    def __init__(self, function: Callable, params: Sequence[Parameter], outputs: Sequence[Output]):
        self._function, self._own = function, [each.own for each in outputs]
        self._names = tuple(param.name for param in params)
        self._wanted = [(tuple(param.kind.dims), np.dtype(param.kind.dtype)) for param in params]
        self._kept: dict[int, tuple[tvm.runtime.Tensor, np.ndarray]] = {}

    def run(self, inputs: Sequence, named: Mapping[str, object]) -> list[np.ndarray] | None:
        """Return the outputs; None if an input is missing, or is not a CPU tensor of its shape and type."""
        if named or (len(inputs) == 1 and type(inputs[0]) is dict):
            inputs = self._by_name(inputs, named)
        if inputs is None or len(inputs) != len(self._wanted):
            return None
        tensors = []
        for number, value in enumerate(inputs):
            tensor = self.tensor(number, value)
            if tensor is None:
                return None
            tensors.append(tensor)
        return self.arrays(self._function(*tensors))

    def _by_name(self, inputs: Sequence, named: Mapping[str, object]) -> list | None:
        given = named
        if inputs:
            if len(inputs) != 1 or type(inputs[0]) is not dict or named:
                return None
            given = inputs[0]
        if len(given) != len(self._names):
            return None
        try:
            return [given[name] for name in self._names]
        except KeyError:
            return None

    def tensor(self, number: int, value: object) -> tvm.runtime.Tensor | None:
        """Return an input as a tensor that kernels can read, copied if necessary; None if it does not fit."""
        shape, dtype = self._wanted[number]
        if type(value) is not np.ndarray:
            return self._foreign(number, value)
        if value.shape != shape or value.dtype != dtype:
            return None
        try:
            tensor = from_dlpack(value)
        except BufferError:  # read-only
            return self._copied(number, value)
        if tensor.data_ptr() & _INEXACT or not tensor.is_contiguous():
            return self._copied(number, value)
        return tensor

    def _foreign(self, number: int, value: object) -> tvm.runtime.Tensor | None:
        """Return a tensor of TVM, torch or another library, copied if necessary; None if it does not fit."""
        value = foreign(value, _CPU)
        shape, dtype = self._wanted[number]
        if value is None or value.shape != shape or value.dtype != str(dtype):
            return None
        if value.data_ptr() & _INEXACT or not value.is_contiguous():
            return self._copied(number, array_of(value))
        return value

    def _copied(self, number: int, array: np.ndarray) -> tvm.runtime.Tensor:
        if number not in self._kept:
            shape, dtype = self._wanted[number]
            tensor = tvm.runtime.empty(shape, str(dtype))
            self._kept[number] = tensor, array_of(tensor)
        tensor, there = self._kept[number]
        np.copyto(there, array)
        return tensor

    def arrays(self, result) -> list[np.ndarray]:
        """Return the outputs of a call, each in its own memory."""
        found = [result] if isinstance(result, tvm.runtime.Tensor) else result
        return [
            np.from_dlpack(each) if own else np.from_dlpack(each).copy()
            for each, own in zip(found, self._own, strict=True)
        ]


def is_plain(params: Sequence[Parameter]) -> bool:
    """Whether all inputs are tensors of known sizes and of types that numpy has."""
    return all(
        isinstance(param.kind, TensorKind)
        and param.kind.dims is not None
        and all(isinstance(dim, int) for dim in param.kind.dims)
        and not param.kind.stated
        and _is_of_numpy(param.kind.dtype)
        for param in params
    )


def gives_plain(result, arrays: Sequence[np.ndarray], outputs: Sequence[Output]) -> bool:
    """Whether a result is a flat sequence of tensors, and the caller's arrays are these tensors without conversion."""
    found = [result] if isinstance(result, tvm.runtime.Tensor) else result
    if not isinstance(found, list | tuple | Array) or len(found) != len(arrays) or len(found) != len(outputs):
        return False
    return all(
        isinstance(each, tvm.runtime.Tensor) and str(each.dtype) == str(array.dtype) and _is_of_numpy(str(each.dtype))
        for each, array in zip(found, arrays, strict=True)
    )


def _is_of_numpy(dtype: str) -> bool:
    return dtype in np.sctypeDict and np.dtype(dtype).kind in "biufc"
