# SPDX-License-Identifier: Apache-2.0
"""Cut a kernel along a dimension of its result: each part reads only the parts of its operands that it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

import tvm_ffi
from tvm import ir, tirx

from .compose import simplify
from .index_map import variables
from .kernel import Kernel, Stage, shape_of, substitute
from .storage import along_result


@dataclass(frozen=True, eq=False)
class Cut:
    """A cut of a kernel along one dimension of its result.

    Attributes
    ----------
    kernel : Kernel
    dim : int
        Dimension of the result.
    axes : mapping
        Stage -> its iterator along this dimension. A stage without one is computed whole in each part.
    sliced : mapping
        Input that is cut -> the dimension along which it is cut.
    """

    kernel: Kernel
    dim: int
    axes: Mapping[Stage, ir.Var]
    sliced: Mapping[object, int]

    @classmethod
    def along(cls, kernel: Kernel, dim: int, may_slice: Collection) -> Cut | None:
        """Return the cut along `dim`; None if the kernel does not write its result at bare iterators.

        Parameters
        ----------
        may_slice : collection
            Inputs that may be cut; the others are passed whole to each part.
        """
        store = kernel.last.body
        if len(kernel.outputs) != 1 or not isinstance(store, tirx.BufferStore):
            return None
        var = store.indices[dim]
        if not isinstance(var, ir.Var) or var not in kernel.last.spatial or var in variables([*_others(store, dim)]):
            return None
        axes = along_result(kernel, var)
        if not all(isinstance(stage.body, tirx.BufferStore) for stage in axes):
            return None
        dims = {buffer: {_dim(axes, s, load) for s, load in _loads(kernel, buffer)} for buffer in may_slice}
        sliced = {buffer: min(found) for buffer, found in dims.items() if len(found - {None}) == len(found) == 1}
        # A shorter input is read under a condition: a class token in front of the other tokens.
        whole = shape_of(kernel.outputs[0])[dim]
        return cls(kernel, dim, axes, {b: at for b, at in sliced.items() if shape_of(b)[at] == whole})

    @property
    def extent(self) -> int:
        """Extent of the dimension."""
        return shape_of(self.kernel.outputs[0])[self.dim]

    @property
    def repeated(self) -> int:
        """Number of iteration points that each part repeats."""
        return sum(prod(stage.extents.values()) for stage in self.kernel.stages if stage not in self.axes)

    def part(self, begin: int, extent: int) -> Kernel:
        """Return the kernel for ``result[begin : begin + extent]`` along the dimension."""
        cut = {**self.sliced, **{stage.outputs[0]: self._dim_written(stage) for stage in self.axes}}
        new = {buffer: _shorter(buffer, dim, extent) for buffer, dim in cut.items()}
        stages = tuple(self._stage(stage, cut, new, begin, extent) for stage in self.kernel.stages)
        inputs = tuple(new.get(buffer, buffer) for buffer in self.kernel.inputs)
        return simplify(Kernel(inputs, (new[self.kernel.outputs[0]],), stages))

    def _dim_written(self, stage: Stage) -> int:
        return next(dim for dim, at in enumerate(stage.body.indices) if at.same_as(self.axes[stage]))

    def _stage(self, stage: Stage, cut: dict, new: dict, begin: int, extent: int) -> Stage:
        """Return a stage of a part: cut buffers are accessed from 0, all others from `begin`."""
        var = self.axes.get(stage)
        if var is None:
            return stage
        whole = tirx.Var(var.name, var.ty)  # the iterator's place in the whole result

        def at(buffer, indices) -> list:
            return [var if dim == cut[buffer] else index for dim, index in enumerate(indices)]

        def load(old):
            return new[old.source][tuple(at(old.source, old.indices))] if old.source in new else old

        def store(old):
            return tirx.BufferStore(new[old.buffer], old.value, at(old.buffer, old.indices))

        def rewrite(node):
            node = tvm_ffi.structural_map(substitute(node, {var: whole}), (ir.TensorLoad, load))
            node = tvm_ffi.structural_map(node, (tirx.BufferStore, store))
            return substitute(node, {whole: var + tirx.const(begin, var.ty.dtype)})

        init = rewrite(stage.init) if stage.init is not None else None
        return replace(stage.with_extents({var: extent}), body=rewrite(stage.body), init=init)


def _loads(kernel: Kernel, buffer) -> list[tuple[Stage, ir.TensorLoad]]:
    return [(s, load) for s in kernel.stages for load in s.loads if load.source.same_as(buffer)]


def _dim(axes: Mapping, stage: Stage, load: ir.TensorLoad) -> int | None:
    """Return the only dimension of a load that its stage's iterator indexes, if nothing else does, else None."""
    var = axes.get(stage)
    dims = [dim for dim, at in enumerate(load.indices) if var is not None and var in variables(at)]
    return dims[0] if len(dims) == 1 and load.indices[dims[0]].same_as(var) else None


def _others(store: tirx.BufferStore, dim: int) -> list:
    return [at for other, at in enumerate(store.indices) if other != dim]


def _shorter(buffer, dim: int, extent: int):
    shape = [extent if at == dim else size for at, size in enumerate(buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name)
