# SPDX-License-Identifier: Apache-2.0
"""A call of a function whose inputs and outputs are plain tensors on this CPU: nothing is copied that need not be.

Checking, moving and copying the general way (`arguments`) takes ten times as long as a small kernel. Here all that can
be known before a call is; what is anything but right is left to the general way, whose errors say what.

An input is read where it is if kernels can read it there: its numbers lie one after the other, from a multiple of 64
bytes on. Arrays of numpy begin at multiples of 16, so most are copied into a buffer that stays, beside which an
allocation would take longer than the copy. What this package returns begins at multiples of 64: an output that goes
back in as an input is not copied.
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

_INEXACT = WEIGHT_ALIGNMENT - 1  # bits of an address that kernels cannot read from
_CPU = tvm.cpu()


class DirectCall:
    """A function of a virtual machine.

    Parameters
    ----------
    function : callable
        Takes tensors in the order of the parameters.
    params : sequence of Parameter
        Which `is_plain` accepts.
    outputs : sequence of Output
        Those that are not their own are copied.
    """

    def __init__(self, function: Callable, params: Sequence[Parameter], outputs: Sequence[Output]):
        self._function, self._own = function, [each.own for each in outputs]
        self._names = tuple(param.name for param in params)
        self._wanted = [(tuple(param.kind.dims), np.dtype(param.kind.dtype)) for param in params]
        self._kept: dict[int, tuple[tvm.runtime.Tensor, np.ndarray]] = {}

    def run(self, inputs: Sequence, named: Mapping[str, object]) -> list[np.ndarray] | None:
        """The outputs; None if an input is missing or anything but a tensor of its shape and type on a CPU."""
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
        """An input as kernels read it."""
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
        """A tensor of TVM, torch or another library."""
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
        """The outputs of a call, in memory of their own."""
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
    """Whether what a function gave is a flat row of tensors, and what a caller gets are their numbers as they are."""
    found = [result] if isinstance(result, tvm.runtime.Tensor) else result
    if not isinstance(found, list | tuple | Array) or len(found) != len(arrays) or len(found) != len(outputs):
        return False
    return all(
        isinstance(each, tvm.runtime.Tensor) and str(each.dtype) == str(array.dtype) and _is_of_numpy(str(each.dtype))
        for each, array in zip(found, arrays, strict=True)
    )


def _is_of_numpy(dtype: str) -> bool:
    return dtype in np.sctypeDict and np.dtype(dtype).kind in "biufc"
