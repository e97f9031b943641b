# SPDX-License-Identifier: Apache-2.0
"""Caches of a compiled model: device tensors at fixed addresses, which kernels write rows into and which stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tvm

from ..errors import UserError, shape_text
from ..ir.cache_rows import Cache, caches_of
from ..ir.public_functions import public_functions
from ..ir.several_sizes import size_functions
from ..ir.sizes import WEIGHT_ALIGNMENT
from ..narrow import to_bytes
from ..tensor_arrays import tensor_of
from .arguments import Parameter, TensorKind


@dataclass(frozen=True)
class CacheTensor:
    """The tensor of a cache.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        The type in memory.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CachePlan:
    """The caches of a model's functions, which share the tensors of equal names.

    Attributes
    ----------
    functions : dict
        Function -> its caches.
    tensors : dict
        Input name of a cache -> its tensor.
    last : bool
        Whether compiled functions take the caches after all other inputs, as `FixAddresses` has them on GPUs.
    hides : dict
        Function, and whether tokens are padded -> whether it hides the rows behind them, as far as `HiddenRows` has
        tested it.
    """

    functions: Mapping[str, Sequence[Cache]]
    tensors: Mapping[str, CacheTensor]
    last: bool = False
    hides: dict[tuple[str, bool], bool] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, caches: Mapping[str, Sequence[Cache]], params: Mapping[str, Sequence[Parameter]], last: bool = False
    ) -> CachePlan:
        """Return the plan of functions with these caches and inputs.

        Raises
        ------
        UserError
            If two functions have a cache of one name and of different sizes.
        """
        tensors: dict[str, CacheTensor] = {}
        for name, each in ((name, each) for name, found in caches.items() for each in found):
            kind = params[name][each.input].kind
            tensor = CacheTensor(tuple(kind.dims), kind.dtype) if isinstance(kind, TensorKind) and kind.dims else None
            if isinstance(kind, TensorKind) and kind.stated:
                raise UserError(f"Cache '{each.name}' is of {kind.stated}, which is kept in bytes: leave it an input.")
            known = tensors.setdefault(each.name, tensor)
            if tensor is None or known != tensor:
                raise UserError(
                    f"Cache '{each.name}' has the shape {shape_text(known.shape) if known else '?'} in one size of the "
                    f"model and {shape_text(tensor.shape) if tensor else '?'} in another: give it one shape."
                )
        return cls({name: tuple(each) for name, each in caches.items() if each}, tensors, last)

    def __bool__(self) -> bool:
        return bool(self.tensors)

    @property
    def axes(self) -> dict[str, int]:
        """Return the dimension of each cache that counts its rows."""
        return {each.name: each.axis for found in self.functions.values() for each in found}

    def inputs(self, function: str, every: Sequence) -> list:
        """Return those of a function's inputs, or of facts about them, that a caller gives."""
        held = {each.input for each in self.functions.get(function, ())}
        return [each for number, each in enumerate(every) if number not in held]

    def outputs(self, function: str, every: Sequence) -> list:
        """Return those of a function's results, or of facts about them, that a caller gets."""
        held = {each.output for each in self.functions.get(function, ())}
        return [each for number, each in enumerate(every) if number not in held]


def _in_one_block(tensors: Mapping[str, CacheTensor]) -> dict[str, tvm.runtime.Tensor]:
    """Return tensors of zeros in this machine's memory, one behind the other.

    numpy asks the system for huge pages for a large array, and a cache of its own is often smaller than one. In pages
    of 4 KB 2,048 rows took 1.08x of the time of a token (AMD EPYC, 2026-11-30). Memory that no row was written to, and
    that no kernel reads, is not taken from the system.
    """
    bytes_of = {name: prod(each.shape) * np.dtype(each.dtype).itemsize for name, each in tensors.items()}
    block = np.zeros(sum(each + WEIGHT_ALIGNMENT for each in bytes_of.values()), "uint8")
    found, at = {}, 0
    for name, each in tensors.items():
        at += -(block.ctypes.data + at) % WEIGHT_ALIGNMENT
        found[name] = tensor_of(block[at : at + bytes_of[name]].view(each.dtype).reshape(each.shape))
        at += bytes_of[name]
    return found


def require_caches(graph: tvm.IRModule) -> None:
    """Refuse a model in which no caches were found, and sizes of a model with different ones.

    Raises
    ------
    UserError
    """
    found = {name: {each.name for each in caches_of(graph[name])} for name in public_functions(graph)}
    if not any(found.values()):
        raise UserError(
            "No input of the model comes back with new rows by Where, ScatterElements, ScatterND or TensorScatter, so "
            "it has no caches to keep: give caches that grow by Concat a number of rows, as in --cache auto:2048 (in "
            "Python from_onnx(..., rows=2048)), or leave the caches out."
        )
    sizes = [found[name] for name in size_functions(graph)]
    differ = set().union(*sizes) - set.intersection(*sizes) if sizes else set()
    if differ:
        names = ", ".join(f"'{each}'" for each in sorted(differ))
        raise UserError(
            f"{names} can be caches at some of the model's sizes only: name the caches that all sizes have, or compile "
            f"these sizes by themselves."
        )


class HeldCaches:
    """The tensors of a machine's caches, zero at first: what no row was written to must be finite.

    Parameters
    ----------
    plan : CachePlan
    device : tvm.runtime.Device
    """

    def __init__(self, plan: CachePlan, device: tvm.runtime.Device):
        self.plan = plan
        self._device = device
        if device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
            self.tensors = _in_one_block(plan.tensors)
            return
        self.tensors = {name: tvm.runtime.empty(t.shape, t.dtype, device) for name, t in plan.tensors.items()}
        for name in self.tensors:
            self.put(name, np.zeros(plan.tensors[name].shape, plan.tensors[name].dtype))

    def put(self, name: str, array: np.ndarray) -> None:
        """Copy an array into a cache.

        Raises
        ------
        UserError
            If there is no such cache, or the array has another shape or type.
        """
        if name not in self.tensors:
            known = ", ".join(f"'{each}'" for each in self.tensors) or "none"
            raise UserError(f"This model has no cache '{name}': its caches are {known}.")
        wanted, given = self.plan.tensors[name], to_bytes(np.asarray(array, order="C"))
        if given.shape != wanted.shape or str(given.dtype) != wanted.dtype:
            raise UserError(
                f"Cache '{name}' is {wanted.dtype} {shape_text(wanted.shape)}, and the array is {given.dtype} "
                f"{shape_text(given.shape)}: give one of that type and shape."
            )
        self.tensors[name].copyfrom(given)

    def put_back(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Copy the arrays of all caches there, and return the other inputs.

        Raises
        ------
        UserError
            If a cache has no array, or one of another shape or type.
        """
        left = dict(given)
        for name in self.tensors:
            if name not in left:
                raise UserError(f"Cache '{name}' has no array, and the model's file takes one: give it, or use `run`.")
            self.put(name, left.pop(name))
        return left

    def whole(self, function: str, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return a function's outputs with what is in the caches, as the model's file gives them."""
        found = list(outputs)
        for each in sorted(self.plan.functions.get(function, ()), key=lambda cache: cache.output):
            found.insert(each.output, self.tensors[each.name].numpy())
        return found

    def called(self, name: str, function: Callable, whole: bool = False) -> Callable:
        """Return a function that takes and gives what a caller sees, and passes the caches by itself.

        Parameters
        ----------
        whole : bool
            Whether the result is returned as it is: with the caches in it, or a time.
        """
        caches = self.plan.functions.get(name, ())
        if not caches:
            return function
        held = [(each.input, self.tensors[each.name]) for each in caches]
        given_back = self.without(name, function)

        def call(*given):
            tensors = list(given)
            for place, tensor in held:  # in the order of the inputs
                tensors.insert(len(tensors) if self.plan.last else place, tensor)
            return function(*tensors) if whole else given_back(*tensors)

        return call

    def of(self, name: str) -> list[tvm.runtime.Tensor]:
        """Return the caches of a function, in the order of its inputs."""
        return [self.tensors[each.name] for each in self.plan.functions.get(name, ())]

    def without(self, name: str, function: Callable) -> Callable:
        """Return a function that leaves out the caches among the results."""
        hidden = {each.output for each in self.plan.functions.get(name, ())}

        def call(*tensors):
            result = function(*tensors)
            if isinstance(result, tvm.runtime.Tensor):  # the only result
                return [] if hidden else result
            return [result[number] for number in range(len(result)) if number not in hidden]

        return call if hidden else function
