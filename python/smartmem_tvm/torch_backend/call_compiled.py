# SPDX-License-Identifier: Apache-2.0
"""Call a compiled program with tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        self._inputs, self._results, self._copied = ready.inputs, ready.results, ready.copied
        self._weights = ready.weights  # other sizes find them as long as they are held
        self._lock = Lock()  # a virtual machine runs one call at a time
        self._stream: Callable = tvm_ffi.use_torch_stream if device.type == "cuda" else nullcontext
        shared = device_kind(target) == device.type  # torch and TVM share the memory
        where = device_of(target, device.index or 0) if shared else device_of(target)
        self._machine = ready.machine(target, where)
        self._run = self._machine[MAIN]
        self._read, self._write = (_shared, _shared_back) if shared else (self._moved, _moved_back)

    def __call__(self, inputs: Sequence[Any]) -> list:
        """Run on the inputs of the graph and return its results."""
        tensors = [self._read(inputs[at]) for at in self._inputs]
        with self._lock, self._stream():
            found = self._run(*tensors)
        found = [found] if isinstance(found, tvm.runtime.Tensor) else found
        tensors = iter(self._write(each, copied) for each, copied in zip(found, self._copied, strict=True))
        return [next(tensors) if each is None else each for each in self._results]

    def _moved(self, tensor: torch.Tensor) -> tvm.runtime.Tensor:
        return self._machine.tensors([tensor.detach().resolve_neg().numpy()])[0]


def _shared(tensor: torch.Tensor) -> tvm.runtime.Tensor:
    """Return a TVM tensor on the same memory, or on a copy if kernels cannot read the original."""
    tensor = tensor.detach().resolve_neg().contiguous()
    return tvm.runtime.from_dlpack(tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone())


def _shared_back(tensor: tvm.runtime.Tensor, copied: bool) -> torch.Tensor:
    found = torch.from_dlpack(tensor)
    return found.clone() if copied else found


def _moved_back(tensor: tvm.runtime.Tensor, copied: bool) -> torch.Tensor:
    return torch.from_numpy(tensor.numpy())
