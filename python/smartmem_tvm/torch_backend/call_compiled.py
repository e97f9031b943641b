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

from ..deploy.arguments import TensorKind
from ..deploy.build import Compiled, compile
from ..deploy.outputs import not_of_their_own
from ..errors import shape_text
from ..frontend import from_torch
from ..ir.public_functions import MAIN
from ..target import device_kind, device_of
from .program import Program, outside_of_torch_compile
from .refusals import Refusal
from .request import Request

_ALIGNMENT = 64  # bytes, as TVM's kernels require; torch's allocators comply, but views may begin anywhere


class Kernels:
    """A compiled program.

    Parameters
    ----------
    program : Program
        A program that passes `refusals.check_program`.
    device : torch.device
        The device of its tensors.

    Raises
    ------
    Refusal, UserError
        If it cannot be compiled, or the compiled function takes or returns other types.
    """

    def __init__(self, program: Program, request: Request, device: torch.device):
        target = request.target_for(device.type)
        if target is None or (device.type != "cpu" and device_kind(target) != device.type):
            raise Refusal(f"its tensors are on {device}, and kernels here are for {target or 'CPUs and CUDA'}")
        with outside_of_torch_compile():
            compiled = compile(from_torch(program.exported), target, request.options)
        _require_same_types(compiled, program)
        self._inputs, self._results = program.inputs, program.results
        self._copied = not_of_their_own(compiled.graph[MAIN])
        self._lock = Lock()  # a virtual machine runs one call at a time
        self._stream: Callable = tvm_ffi.use_torch_stream if device.type == "cuda" else nullcontext
        shared = device_kind(target) == device.type  # torch and TVM share the memory
        self._machine = compiled.machine(device_of(target, device.index or 0) if shared else None)
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


def _require_same_types(compiled: Compiled, program: Program) -> None:
    """Refuse other types than the program's: ONNX may lose narrow types, and an exporter may drop inputs."""
    taken = [param.kind for param in compiled.functions[MAIN]]
    given = [node.meta["val"] for node in program.exported.graph.nodes if node.name in _user_inputs(program)]
    if [*map(_kind, taken)] != [*map(_type, given)]:
        raise Refusal(f"it takes {_listing(given)}, and what is compiled {', '.join(map(str, taken))}")
    (output,) = (node for node in program.exported.graph.nodes if node.op == "output")
    expected = [node.meta["val"] for node in output.args[0]]
    ty = compiled.graph[MAIN].ret_ty
    found = [(tuple(map(int, each.shape)), str(each.dtype.dtype)) for each in getattr(ty, "fields", [ty])]
    if found != [*map(_type, expected)]:
        raise Refusal(f"it returns {_listing(expected)}, and what is compiled {found}")


def _user_inputs(program: Program) -> set[str]:
    return set(program.exported.graph_signature.user_inputs)


def _kind(kind: object) -> tuple | None:
    is_plain = isinstance(kind, TensorKind) and not kind.stated and kind.dims is not None
    return (kind.dims, kind.dtype) if is_plain else None


def _type(tensor: torch.Tensor) -> tuple:
    return tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch.")


def _listing(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{shape_text(each.shape)} {each.dtype}" for each in tensors)
