# SPDX-License-Identifier: Apache-2.0
"""A function with bound buffers: each call reads its inputs from them, and outputs can be inputs of the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import UserError
from ..narrow import to_bytes
from ..tensor_arrays import array_of
from .arguments import Parameter, arguments, foreign, is_readable
from .outputs import Output


@dataclass(frozen=True)
class Plan:
    """The facts about a function that binding needs.

    Attributes
    ----------
    name : str
    params : sequence of Parameter
    outputs : sequence of Output
    device : tvm.runtime.Device
    put : callable
        Array -> tensor on the device.
    stated : callable
        ``stated(outputs, name)``: the outputs in the types that the model states.
    """

    name: str
    params: Sequence[Parameter]
    outputs: Sequence[Output]
    device: tvm.runtime.Device
    put: Callable[[np.ndarray], tvm.runtime.Tensor]
    stated: Callable[[list[np.ndarray], str], list[np.ndarray]]

    @property
    def on_cpu(self) -> bool:
        """Whether the device is a CPU, whose tensors a caller can read directly."""
        return self.device == tvm.cpu()

    def input(self, name: str) -> int:
        """Return the position of an input."""
        return self._place(name, [param.name for param in self.params], "takes")

    def output(self, name: str) -> int:
        """Return the position of an output."""
        return self._place(name, [each.name for each in self.outputs], "gives")

    def _place(self, name: str, names: Sequence[str], does: str) -> int:
        if name not in names:
            known = ", ".join(f"'{each}'" for each in names) or "nothing"
            raise UserError(
                f"Function '{self.name}' {does} {known}, and '{name}' is none of them: use one of these names."
            )
        return names.index(name)


class Bound:
    """A function with bound buffers, made by `Session.bind`.

    Parameters
    ----------
    plan : Plan
    call : callable
        The function; it takes tensors on the device.
    turn : callable
        Returns the context manager of an inference.
    inputs, outputs, states : mapping
        See `Session.bind`.
    """

    def __init__(
        self,
        plan: Plan,
        call: Callable,
        turn: Callable[[], AbstractContextManager],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        states: Mapping[str, str],
    ):
        self._plan, self._call, self._turn = plan, call, turn
        self._states = [(plan.output(out), plan.input(name)) for out, name in states.items()]
        tensors = arguments(plan.name, plan.params, (), inputs, plan.device, plan.put)  # which checks them
        self._copied: list[tuple[int, Any]] = []
        for number, param in enumerate(plan.params):
            there = _in_place(inputs[param.name], plan.device)
            tensors[number] = tensors[number] if there is None else there
            if there is None and isinstance(tensors[number], tvm.runtime.Tensor):
                self._copied.append((number, inputs[param.name]))
        self._first, self._tensors = tuple(tensors), list(tensors)
        going_back = {number for _, number in self._states}
        self._each_time = [pair for pair in self._copied if pair[0] not in going_back]
        self._written = [
            (plan.output(name), buffer, to_write(name, plan.name, buffer)) for name, buffer in outputs.items()
        ]

    def run(self) -> list:
        """Run one inference on the present contents of the buffers.

        Returns
        -------
        list
            For each output, the buffer that was bound for it; otherwise an array, or a tensor of TVM if the session's
            device is no CPU.
        """
        with self._turn():
            for number, buffer in self._each_time:
                self._tensors[number].copyfrom(_as_kept(buffer))
            result = self._call(*self._tensors)
            found = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
            given = self._given(found)
            for number, buffer, array in self._written:
                write(array, given[number], self._plan.outputs[number].name, self._plan.name)
                given[number] = buffer
            for out, number in self._states:
                self._check_state(out, number, found[out])
                own = self._plan.outputs[out].own
                self._tensors[number] = found[out] if own else _copy(found[out], self._plan.device)
        return given

    def reset(self) -> None:
        """Reset the states to the present contents of the buffers of their inputs."""
        with self._turn():
            going_back = {number for _, number in self._states}
            for number in going_back:
                self._tensors[number] = self._first[number]
            for number, buffer in self._copied:
                if number in going_back:
                    self._tensors[number].copyfrom(_as_kept(buffer))

    def _check_state(self, out: int, number: int, tensor: tvm.runtime.Tensor) -> None:
        wanted = self._first[number]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            output, param = self._plan.outputs[out].name, self._plan.params[number].name
            raise UserError(
                f"Output '{output}' of function '{self._plan.name}' is {tensor.dtype} {list(tensor.shape)}, and input "
                f"'{param}', that it is to be, {wanted.dtype} {list(wanted.shape)}: give it to an input of its kind."
            )

    def _given(self, found: Sequence) -> list:
        if not self._plan.on_cpu or not all(isinstance(each, tvm.runtime.Tensor) for each in found):
            return list(found)
        pairs = zip(found, self._plan.outputs, strict=True)
        arrays = [array_of(each) if output.own else array_of(each).copy() for each, output in pairs]
        return self._plan.stated(arrays, self._plan.name)


def to_write(name: str, function: str, buffer: Any) -> np.ndarray:
    """Return the buffer of an output as an array in the same memory.

    Raises
    ------
    UserError
        If nothing can be written to it.
    """
    if isinstance(buffer, np.ndarray):
        array = buffer
    else:
        tensor = foreign(buffer, tvm.cpu())
        array = array_of(tensor) if tensor is not None else None
    if array is None or not array.flags.writeable:
        raise UserError(
            f"The buffer of output '{name}' of function '{function}' is no tensor on a CPU that can be written to: "
            f"give an array of numpy, or a tensor of torch or TVM."
        )
    return array


def write(array: np.ndarray, found: Any, name: str, function: str) -> None:
    """Write a result to the buffer of an output.

    Raises
    ------
    UserError
        If the buffer has another type or shape.
    """
    values = found if isinstance(found, np.ndarray) else found.numpy()
    if array.shape != values.shape or array.dtype != values.dtype:
        raise UserError(
            f"The buffer of output '{name}' of function '{function}' is {array.dtype} {list(array.shape)}, and the "
            f"output is {values.dtype} {list(values.shape)}: give one of that type and shape."
        )
    np.copyto(array, values)


def _in_place(buffer: Any, device: tvm.runtime.Device) -> tvm.runtime.Tensor | None:
    """Return the buffer as a tensor in the same memory; None if kernels cannot read it there."""
    if isinstance(buffer, np.ndarray) and device == tvm.cpu():
        try:
            tensor = tvm_ffi.from_dlpack(buffer)
        except BufferError:  # read-only, or of a type that DLPack lacks
            return None
    else:
        tensor = foreign(buffer, device)
    return tensor if tensor is not None and is_readable(tensor) else None


def _as_kept(buffer: Any) -> np.ndarray:
    """Return the present contents of a buffer, in the type that it has in memory."""
    tensor = foreign(buffer, tvm.cpu())
    return to_bytes(np.asarray(buffer if tensor is None else array_of(tensor), order="C"))


def _copy(tensor: tvm.runtime.Tensor, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    return tensor.copyto(tvm.runtime.empty(tensor.shape, tensor.dtype, device))
