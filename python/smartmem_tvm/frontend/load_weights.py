# SPDX-License-Identifier: Apache-2.0
"""The large weights of a model: read or drawn one at a time, directly into the tensors of the module."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
import tvm

from smartmem_tvm.errors import UserError
from smartmem_tvm.light import Recipe, has_data
from smartmem_tvm.tensor_arrays import array_of, tensor_of

_ALIGNMENT = 64  # bytes, of tensors that TVM allocates; its vector instructions rely on it


@dataclass(frozen=True)
class Weight:
    """One large initializer.

    Attributes
    ----------
    shape, dtype
        Shape and type of its values.
    load
        The function that reads, maps or draws the values.
    place : tuple, optional
        The file that holds the values, and the byte at which they begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], tvm.runtime.Tensor]
    place: tuple[Path, int] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the values, in bytes."""
        return prod(self.shape) * self.dtype.itemsize


class Weights(Mapping[str, tvm.runtime.Tensor]):
    """Initializer name -> its tensor, loaded at the first access and shared by later ones.

    All readers of a model (this package's importer, TVM's, ONNX Runtime) use the same memory.
    """

    def __init__(self, weights: Mapping[str, Weight]):
        self._weights = dict(weights)
        self._tensors: dict[str, tvm.runtime.Tensor] = {}

    def __getitem__(self, name: str) -> tvm.runtime.Tensor:
        if name not in self._tensors:
            self._tensors[name] = self._weights[name].load()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:  # Mapping's own would load the weight
        return name in self._weights

    def nbytes(self, name: str) -> int:
        """Size of one weight, in bytes; nothing is loaded."""
        return self._weights[name].nbytes

    @property
    def all(self) -> Mapping[str, Weight]:
        """Return the weights by name, as they were given; nothing is loaded."""
        return self._weights

    @property
    def room(self) -> int:
        """Return the limit of bytes that the import of a model with these weights may take."""
        return max(_memory() // 2, 4 * sum(map(self.nbytes, self)))

    def array(self, name: str) -> np.ndarray:
        """Return the values of one weight: a view of its tensor, not a copy."""
        return array_of(self[name])

    def hold(self, tensor: onnx.TensorProto) -> bool:
        """Return whether an initializer takes its values from here (a step on the graph may have given it others)."""
        return tensor.name in self and not has_data(tensor)

    def fill(self, model: onnx.ModelProto) -> None:
        """Put the values into the initializers of a model that have none, in place."""
        for tensor in filter(self.hold, model.graph.initializer):
            tensor.raw_data = self.array(tensor.name).tobytes()


def drawn(recipe: Recipe, shape: tuple[int, ...], dtype: np.dtype) -> Weight:
    """Return a weight of a light model."""

    def load() -> tvm.runtime.Tensor:
        if dtype != np.float32:
            return tvm.runtime.tensor(recipe.draw(shape).astype(dtype))
        tensor = tvm.runtime.empty(shape, "float32")
        recipe.draw(shape, out=np.from_dlpack(tensor))
        return tensor

    return Weight(shape, dtype, load)


def mapped(path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Weight:
    """Return a weight in a file beside the model: mapped into memory, so that the system reads pages when used."""

    def load() -> tvm.runtime.Tensor:
        # Copy-on-write only makes it writable: numpy passes no read-only array to other libraries.
        array = np.memmap(path, dtype, "c", offset, shape) if prod(shape) else np.empty(shape, dtype)
        return as_tensor(array)

    return Weight(shape, dtype, load, (path, offset))


def stored(tensor: onnx.TensorProto, shape: tuple[int, ...], dtype: np.dtype) -> Weight:
    """Return a weight stored inside of the model."""
    return Weight(shape, dtype, lambda: tvm.runtime.tensor(onnx.numpy_helper.to_array(tensor)))


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """Return an array as TVM's tensor: the same memory if aligned as TVM's kernels expect, otherwise a copy."""
    return tvm.runtime.tensor(array) if array.ctypes.data % _ALIGNMENT else tensor_of(array)


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def refuse_more_than_memory(weights: Weights, name: str) -> None:
    """Refuse weights that this machine cannot hold, before any is loaded.

    Raises
    ------
    UserError
        States the bytes needed and present.
    """
    needed, present = sum(map(weights.nbytes, weights)), _memory()
    if needed > present:
        raise UserError(
            f"{name} has weights of {needed / 1e9:.1f} GB, and this machine has {present / 1e9:.1f} GB of memory; "
            f"use a larger machine, or export the model again if a shape in it is damaged."
        )
