# SPDX-License-Identifier: Apache-2.0
"""A call of a function on a GPU that takes few bytes, through memory of this machine that the GPU reads by itself.

A copy of eight bytes to a GPU takes 15 us, and one of 128 kB back 31 us (NVIDIA H200, 2026-11-29): as long as ten
kernels of a token. Here inputs lie in pinned memory, from which the first kernels take them, and results are
copied into pinned memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

import numpy as np
import tvm

from ..ir.sizes import data_bytes
from .arguments import Parameter, in_order

_MOST_PINNED = 64 << 20  # bytes. Chosen: copies of more take milliseconds, beside which a call costs little
_CUDA_HOST = 3  # by definition of DLPack: kDLCUDAHost, pinned memory of the host


def pinned_memory(device: tvm.runtime.Device) -> tvm.runtime.Device | None:
    """Return the memory of this machine that kernels of a device read, for the same addresses; None if there is none.

    Each GPU has one of its own, as TVM launches a kernel where the memory of its arguments says.
    """
    if device.dlpack_device_type() != tvm.cuda().dlpack_device_type():
        return None
    known = tvm.get_global_func("device_api.cuda_host", allow_missing=True) is not None
    return tvm.runtime.Device(_CUDA_HOST, device.index) if known else None


class HostCall:
    """A function whose inputs are arrays that the caller fills, and whose results are arrays until the next call.

    Parameters
    ----------
    call : callable
        Takes tensors in the order of `params`, and returns a tensor or several.
    params : sequence of Parameter
        Its inputs, tensors of known sizes.
    memory : tvm.runtime.Device
        See `pinned_memory`.
    device : tvm.runtime.Device
        The device of the function.
    turn : callable
        Returns the context manager of an inference.
    reads : bool
        Whether the function copies its inputs first, as `FixAddresses` lets it: kernels read them over the bus. If not,
        each call copies them to memory of the device.

    Attributes
    ----------
    inputs : dict
        Input name -> its array.
    """

    def __init__(
        self,
        call: Callable,
        params: Sequence[Parameter],
        memory: tvm.runtime.Device,
        device: tvm.runtime.Device,
        turn: Callable[[], AbstractContextManager] = nullcontext,
        reads: bool = True,
    ):
        self._call, self._memory, self._device, self._turn, self._reads = call, memory, device, turn, reads
        self._pinned = [tvm.runtime.empty(each.kind.dims, each.kind.dtype, memory) for each in params]
        self._seen = [_Seen(tensor, device) for tensor in self._pinned] if reads else []
        self._tensors = [tvm.runtime.from_dlpack(each) for each in self._seen]
        if not reads:
            self._tensors = [tvm.runtime.empty(each.kind.dims, each.kind.dtype, device) for each in params]
        self.inputs: Mapping[str, np.ndarray] = {
            each.name: _array_in(tensor) for each, tensor in zip(params, self._pinned, strict=True)
        }
        for array in self.inputs.values():  # what no call fills may be read as the number of a row
            array[...] = 0
        self._landed: list[tuple[tvm.runtime.Tensor, np.ndarray]] = []

    def takes(self, values: Sequence) -> bool:
        """Whether values are arrays of the types of the first inputs, in their order."""
        return all(
            isinstance(value, np.ndarray) and value.dtype == array.dtype
            for value, array in zip(values, self.inputs.values())
        )

    def run(
        self,
        fill: Callable[[list[np.ndarray]], None] = lambda inputs: None,
        take: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda results: results,
    ) -> list[np.ndarray]:
        """Run one inference on the present contents of the inputs.

        Parameters
        ----------
        fill, take : callable
            ``fill(inputs)`` before the inference and ``take(results)`` after it, at its turn: other threads wait.
        """
        with self._turn():
            fill(list(self.inputs.values()))
            for pinned, tensor in zip(self._pinned, self._tensors, strict=True) if not self._reads else ():
                pinned.copyto(tensor)
            result = self._call(*self._tensors)
            found = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
            if [tuple(each.shape) for each in found] != [array.shape for _, array in self._landed]:
                there = [tvm.runtime.empty(each.shape, each.dtype, self._memory) for each in found]
                self._landed = [(each, _array_in(each)) for each in there]
            for each, (there, _) in zip(found, self._landed, strict=True):
                each.copyto(there)
            self._device.sync()  # a copy into pinned memory may go on after the call that starts it
            return take([array for _, array in self._landed])


class PinnedCall:
    """A fast call of a function whose inputs and outputs are plain tensors, as `DirectCall` is on a CPU.

    It leaves unusual inputs, as tensors of other libraries, to the general way.

    Parameters
    ----------
    call : HostCall
    params : sequence of Parameter
        Its inputs.
    """

    def __init__(self, call: HostCall, params: Sequence[Parameter]):
        self._call, self._names = call, [each.name for each in params]
        self._dims = [tuple(each.kind.dims) for each in params]

    def run(self, inputs: Sequence, named: Mapping[str, object]) -> list[np.ndarray] | None:
        """Return the outputs; None if an input is missing, or is no array of its shape and type."""
        values = in_order(self._names, inputs, named)
        if values is None or not self._call.takes(values):
            return None
        if any(value.shape != dims for value, dims in zip(values, self._dims, strict=True)):
            return None

        def fill(arrays: list[np.ndarray]) -> None:
            for array, value in zip(arrays, values, strict=True):
                np.copyto(array, value)

        return self._call.run(fill, lambda arrays: [each.copy() for each in arrays])


def is_small(params: Sequence[Parameter], outputs: Sequence[np.ndarray]) -> bool:
    """Whether the inputs and outputs of a call may lie in pinned memory, which the system cannot use otherwise."""
    read = sum(prod(each.kind.dims) * np.dtype(each.kind.dtype).itemsize for each in params)
    return read + sum(each.nbytes for each in outputs) <= _MOST_PINNED


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLManagedTensor, by definition of DLPack; without a function that frees it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Seen:
    """A pinned tensor as the device sees it: kernels check on which device a caller's tensor is.

    It must outlive the tensors that are made of it.
    """

    def __init__(self, tensor: tvm.runtime.Tensor, device: tvm.runtime.Device):
        self._device = device.dlpack_device_type(), device.index
        shape, dtype = tuple(map(int, tensor.shape)), tvm.DataType(str(tensor.dtype))
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        steps = [prod(shape[at + 1 :]) for at in range(len(shape))]
        self._strides = (ctypes.c_int64 * len(shape))(*steps)
        kind = _Type(dtype.type_code, dtype.bits, dtype.lanes)
        place = (ctypes.c_int32 * 2)(*self._device)
        self._tensor = _Tensor(tensor.data_ptr(), place, len(shape), kind, self._shape, self._strides, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def _array_in(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Return an array in the memory of a tensor that must outlive it; libraries differ about DLPack's pinned memory."""
    there = (ctypes.c_byte * data_bytes(tensor)).from_address(tensor.data_ptr())
    return np.frombuffer(there, str(tensor.dtype)).reshape(tensor.shape)
