# SPDX-License-Identifier: Apache-2.0
"""Call a compiled program with tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from threading import Lock
from typing import Any

import torch
import tvm
import tvm_ffi

from ..ir.public_functions import MAIN
from ..target import device_kind, device_of
from .kept_programs import Ready

_ALIGNMENT = 64  # bytes, as TVM's kernels require; torch's allocators comply, but views may begin anywhere


class Kernels:
    """A compiled program, ready to be called.

    Parameters
    ----------
    ready : Ready
        Compiled for `target`.
    device : torch.device
        The device of the tensors.
    """

    def __init__(self, ready: Ready, target: tvm.target.Target, device: torch.device):
        self.ready = ready  # whose weights other sizes find as long as they are held
        self._inputs, self._results, self._copied = ready.inputs, ready.results, ready.copied
        self._lock = Lock()  # a virtual machine runs one call at a time
        self._stream: Callable = tvm_ffi.use_torch_stream if device.type == "cuda" else nullcontext
        shared = device_kind(target) == device.type  # torch and TVM share the memory
        where = device_of(target, device.index or 0) if shared else device_of(target)
        self._machine = ready.machine(target, where)
        self._run = self._machine[MAIN]
        self._read, self._write = (_shared, _shared_back) if shared else (self._moved, _moved_back)
        self._at_length = None if ready.at is None else _AtLength(self._run, self._lock, ready)

    def __call__(self, inputs: Sequence[Any]) -> list:
        """Run on the inputs of the graph and return its results."""
        if self._at_length is not None:
            return self._in_order(self._at_length(inputs))
        tensors = [self._read(inputs[at]) for at in self._inputs]
        with self._lock, self._stream():
            found = self._run(*tensors)
        found = [found] if isinstance(found, tvm.runtime.Tensor) else found
        return self._in_order(self._write(each, copied) for each, copied in zip(found, self._copied, strict=True))

    def _in_order(self, tensors: Iterable[torch.Tensor]) -> list:
        """Return all results of the graph."""
        found = iter(tensors)
        return [next(found) if each is None else each for each in self._results]

    def _moved(self, tensor: torch.Tensor) -> tvm.runtime.Tensor:
        return self._machine.tensors([tensor.detach().resolve_neg().numpy()])[0]


class _AtLength:
    """A compiled program that takes up to a capacity of positions, on a CPU.

    Inputs are copied to the beginning of buffers of the capacity, and results are cut. Behind the length the buffers
    hold what earlier calls left there.
    """

    def __init__(self, run: Callable, lock: Lock, ready: Ready):
        self._run, self._lock, self._ready, self._at = run, lock, ready, ready.at
        self._buffers: dict[int, tuple[torch.Tensor, tvm.runtime.Tensor]] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on the inputs of the graph, and return those results that are tensors."""
        length = inputs[self._at.number]
        with self._lock:
            given = [self._longer(at, inputs[at], shape) for at, shape in zip(self._ready.inputs, self._at.shapes)]
            buffer, number = self._buffer(-1, [1], torch.int64)
            buffer.fill_(length)
            found = self._run(*given, number)
        found = [found] if isinstance(found, tvm.runtime.Tensor) else found
        return [self._cut(number, each, length) for number, each in enumerate(found)]

    def _longer(self, at: int, tensor: torch.Tensor, shape: Sequence[int]) -> tvm.runtime.Tensor:
        """Return an input at the capacity."""
        if list(tensor.shape) == list(shape):
            return _shared(tensor)
        buffer, found = self._buffer(at, shape, tensor.dtype)
        for axis, size in enumerate(tensor.shape):
            buffer = buffer.narrow(axis, 0, size)
        buffer.copy_(tensor.detach())
        return found

    def _buffer(self, at: int, shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, tvm.runtime.Tensor]:
        """Return a buffer of torch's that is kept, and the same as a tensor of TVM."""
        if at not in self._buffers:
            with torch.inference_mode(False):  # for calls in any mode
                buffer = torch.zeros(shape, dtype=dtype)
            self._buffers[at] = buffer, _shared(buffer)
        return self._buffers[at]

    def _cut(self, number: int, tensor: tvm.runtime.Tensor, length: int) -> torch.Tensor:
        whole = part = torch.from_dlpack(tensor)
        for axis, size in self._at.ends(number, length):
            part = part.narrow(axis, 0, size)
        copied = self._ready.copied[number] or part.shape != whole.shape
        return part.clone(memory_format=torch.contiguous_format) if copied else whole


def _shared(tensor: torch.Tensor) -> tvm.runtime.Tensor:
    """Return a TVM tensor on the same memory, or on a copy if kernels cannot read the original."""
    tensor = tensor.detach().resolve_neg().contiguous()
    return tvm.runtime.from_dlpack(tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone())


def _shared_back(tensor: tvm.runtime.Tensor, copied: bool) -> torch.Tensor:
    found = torch.from_dlpack(tensor)
    return found.clone() if copied else found


def _moved_back(tensor: tvm.runtime.Tensor, copied: bool) -> torch.Tensor:
    return torch.from_numpy(tensor.numpy())
