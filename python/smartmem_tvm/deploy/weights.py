# SPDX-License-Identifier: Apache-2.0
"""A model's large weights, stored outside of its code: arguments of its functions that its virtual machine fills in.

Linking a library with the weights inside takes minutes and five times their memory, and fails beyond 2 GiB.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from ..errors import UserError
from ..huge_pages import PAGE
from ..ir.cache_rows import FIXED_FROM
from ..ir.equal_tensors import first_of_equals
from ..ir.public_functions import MAIN, entry_functions
from ..ir.sizes import LARGE, STORABLE, WEIGHT_ALIGNMENT, data_bytes, number_bytes
from ..ir.walk import collect
from ..narrow import to_bytes
from ..tensor_arrays import array_of, tensor_of
from ..transform.layout.check_textures import SCOPES
from .caches import CachePlan, HeldCaches

_BLOCK = PAGE  # bytes of a write. Defined as a huge page.


@dataclass(frozen=True)
class Weight:
    """A weight of a compiled model.

    Attributes
    ----------
    tensor : tvm.runtime.Tensor
        On a CPU, in the layout that the kernels read: texels last for a texture.
    scope : str
        The memory scope on the device.
    """

    tensor: tvm.runtime.Tensor
    scope: str = "global"

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight's numbers."""
        return _nbytes(self.tensor)

    def on(self, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
        """Return the tensor in the memory of a device, which may be another machine's; on a CPU the tensor itself."""
        if device.dlpack_device_type() == self.tensor.device.dlpack_device_type():
            return self.tensor
        there = tvm.runtime.empty(self.tensor.shape, self.tensor.dtype, device, mem_scope=self.scope)
        return self.tensor.copyto(there)


class Machine(relax.VirtualMachine):
    """A virtual machine on one device whose functions take the model's inputs only.

    Parameters
    ----------
    code : tvm.relax.VMExecutable or tvm.runtime.Module
        Compiled from the module that `lift_weights` returns.
    weights : sequence of Weight
        The arguments of `functions` after the inputs; read in place on a CPU, copied once to any other device.
    device : tvm.runtime.Device, optional
        The device that runs the kernels, by default this machine's CPU. `code` must be on the same machine.
    textures : bool
        Tensors may be in texture memory; TVM numbers each of its scopes like a device of its own.
    functions : collection of str
        The functions that take the weights: `ir.public_functions.entry_functions` of the compiled module.
    caches : CachePlan, optional
        The caches, of which each machine has its own.
    """

    def __init__(
        self,
        code: relax.VMExecutable | tvm.runtime.Module,
        weights: Sequence[Weight] = (),
        device: tvm.runtime.Device | None = None,
        textures: bool = False,
        functions: Collection[str] = (MAIN,),
        caches: CachePlan | None = None,
    ):
        self.device = device if device is not None else tvm.cpu()
        super().__init__(code, [self.device] * (1 + len(SCOPES) if textures else 1))
        self._code, self._textures = code, textures
        self._weights = _placed(weights, self.device)
        self._functions = frozenset(functions)
        self.caches = HeldCaches(caches, self.device) if caches else None
        self._saved: set[str] = set()

    @property
    def on_cpu(self) -> bool:
        """Whether the kernels run on this machine's CPU."""
        return self.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()

    @property
    def takes_turns(self) -> bool:
        """Whether inferences of parallel machines must not overlap.

        TVM records CUDA graphs in a mode in which no other thread may call CUDA, and has one stream for all threads.
        """
        return self.device.dlpack_device_type() == tvm.cuda().dlpack_device_type()

    def another(self) -> Machine:
        """Return a further machine for another thread, with the same weights in memory.

        Raises
        ------
        UserError
            If the weights are in one arena with the tensors of an inference.
        """
        weights = [Weight(tensor) for tensor in self._weights]  # already on the device
        caches = self.caches.plan if self.caches is not None else None
        return Machine(self._code, weights, self.device, self._textures, self._functions, caches)

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor:
        """Return an array on the device, as functions take it."""
        return tvm.runtime.tensor(to_bytes(np.asarray(array, order="C")), self.device)

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """Return the arrays on the device."""
        return [self.tensor(array) for array in arrays]

    def timed(
        self, tensors: Sequence[tvm.runtime.Tensor], runs: int, function: str = "main", calls: int = 1
    ) -> list[float]:
        """Return the seconds of consecutive calls, by the clock of the machine that runs them.

        Parameters
        ----------
        tensors : sequence of tvm.runtime.Tensor
            For a function that takes the weights, the result of `tensors`; otherwise all arguments.
        calls : int
            Calls in a row; each of the `runs` is their mean.
        """
        return list(self.time_evaluator(function, self.device, number=calls, repeat=runs)(*tensors).results)

    def time_evaluator(self, function: str, device: tvm.runtime.Device, **numbers: int) -> Callable:
        """Return TVM's time evaluator; for functions with weights, it takes the model's inputs only."""
        clock = super().time_evaluator(function, device, **numbers)
        weights = self._weights if function in self._functions else ()
        timed = lambda *tensors: clock(*tensors, *weights)  # noqa: E731
        return timed if self.caches is None else self.caches.called(function, timed, whole=True)

    def __getitem__(self, name: str):
        return self._called(name, whole=False)

    def whole(self, name: str) -> Callable:
        """Return a function that takes the model's inputs, and gives the caches among its results."""
        return self._called(name, whole=True)

    def _called(self, name: str, whole: bool) -> Callable:
        function = super().__getitem__(name)
        if name not in self._functions:
            return function
        if self.caches is not None and self.caches.plan.last and not whole:
            return self._bound_last(name)
        bound = (lambda *inputs: function(*inputs, *self._weights)) if self._weights else function
        return bound if self.caches is None else self.caches.called(name, bound, whole)

    def _bound_last(self, name: str) -> Callable:
        """Return a function with caches that come last: the machine holds them, and the weights.

        Passing them, 150 tensors, for each token would take as long as some kernels.
        """
        saved = f"{name}.with_caches"
        if saved not in self._saved:
            self.save_function(name, saved, *self.caches.of(name), *self._weights)
            self._saved.add(saved)
        return self.caches.without(name, super().__getitem__(saved))


def _placed(weights: Sequence[Weight], device: tvm.runtime.Device) -> tuple[tvm.runtime.Tensor, ...]:
    """Return weights in the memory of a device; those in buffers of this machine's OpenCL share one buffer."""
    together = tvm.get_global_func("smartmem.opencl.together", allow_missing=True)
    if together is None or device.dlpack_device_type() != tvm.opencl().dlpack_device_type():
        return tuple(weight.on(device) for weight in weights)
    cpu = tvm.cpu().dlpack_device_type()
    moved = [w for w in weights if w.scope == "global" and w.tensor.device.dlpack_device_type() == cpu]
    there = dict(zip(map(id, moved), together([w.tensor for w in moved], device), strict=True)) if moved else {}
    return tuple(there[id(w)] if id(w) in there else w.on(device) for w in weights)


def lift_weights(mod: tvm.IRModule, small: int = LARGE) -> tuple[tvm.IRModule, list[Weight]]:
    """Turn constants that are large, or in textures, or empty, into parameters after the inputs.

    Each of `entry_functions` takes all of them. Weights that several functions or kernels share (unrolled steps of a
    recurrence) are one tensor, in memory and in the caches.

    Parameters
    ----------
    mod : tvm.IRModule
        A module lowered for the virtual machine; not changed.
    small : int
        Constants in buffers of at most so many bytes stay in the code.

    Returns
    -------
    tvm.IRModule
        The same code; a function's attribute ``num_input``, if it has one, counts the arguments that its caller passes.
    list of Weight
        The values of the new parameters, in their order, each once.
    """
    names = entry_functions(mod)
    constants = [each for name in names for each in collect(mod[name].body, GenericConst) if _is_lifted(each, small)]
    same = first_of_equals([each.value for each in constants])
    found: dict[tuple, GenericConst] = {}
    for each in constants:
        found.setdefault(_key(each, same), each)
    lifted = mod.clone()
    for gvar, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        if found and gvar.name_hint in names:
            lifted.update_func(gvar, _with_parameters(func, found, same))
        elif FIXED_FROM in (func.attrs or {}):
            lifted.update_func(gvar, func.with_attr("num_input", int(func.attrs[FIXED_FROM])))
        elif "num_input" in (func.attrs or {}):
            # Parameters of a module of TVM's `nn` may differ from call to call, so a CUDA graph must not record their
            # addresses.
            lifted.update_func(gvar, func.with_attr("num_input", len(func.params)))
    changed = any(not lifted[gvar].same_as(func) for gvar, func in mod.functions_items())
    return lifted if changed else mod, [Weight(each.value, _scope(each.ty)) for each in found.values()]


def constant_bytes(mod: tvm.IRModule) -> int:
    """Return the bytes of the constants that `lift_weights` leaves in the code, each counted once."""
    functions = [mod[name].body for name in entry_functions(mod)]
    constants = [each for body in functions for each in collect(body, GenericConst) if not _is_lifted(each)]
    return sum(map(_nbytes, {each.value for each in constants if isinstance(each.value, tvm.runtime.Tensor)}))


def _with_parameters(func: relax.Function, found: dict[tuple, GenericConst], same: dict) -> relax.Function:
    params = {key: relax.Var(f"weight_{number}", each.ty) for number, (key, each) in enumerate(found.items())}

    def as_parameter(constant: GenericConst) -> relax.Expr:
        if not isinstance(constant.value, tvm.runtime.Tensor):
            return constant
        return params.get(_key(constant, same), constant)

    body = tvm_ffi.structural_map(func.body, (GenericConst, as_parameter))
    function = relax.Function([*func.params, *params.values()], body, func.ret_ty, func.is_pure, func.attrs)
    # Every call passes the same weights: their types need no check, and CUDA graphs may record their addresses.
    return function.with_attr("num_input", int((func.attrs or {}).get(FIXED_FROM, len(func.params))))


def _is_lifted(constant: GenericConst, small: int = LARGE) -> bool:
    tensor = constant.value
    # For each constant in a texture TVM's exporter prints a needless warning, and its virtual machine makes a copy.
    smallest = small if _scope(constant.ty) == "global" else 0
    # The executable's file cannot hold a constant without elements.
    return isinstance(tensor, tvm.runtime.Tensor) and (not prod(tensor.shape) or _nbytes(tensor) > smallest)


def _key(constant: GenericConst, same: dict) -> tuple:
    return same.get(constant.value, constant.value), _scope(constant.ty)


def _scope(ty: relax.TensorType) -> str:
    vdevice = getattr(ty, "vdevice", None)  # shapes have none
    return vdevice.memory_scope if vdevice is not None else "global"


def _nbytes(tensor: tvm.runtime.Tensor) -> int:
    return data_bytes(tensor) if tensor.dtype in STORABLE else 0


def write_weights(weights: Sequence[Weight], path: Path) -> list[dict]:
    """Write weights into one file; return the ``offset``, ``shape``, ``dtype`` and memory ``scope`` of each."""
    places, parts, end = [], [], 0
    for weight in weights:
        parts.append(np.zeros(-end % WEIGHT_ALIGNMENT, "uint8"))
        parts.append(array_of(weight.tensor).reshape(-1).view("uint8"))
        shape, dtype = [*map(int, weight.tensor.shape)], str(weight.tensor.dtype)
        places.append({"offset": end + parts[-2].size, "shape": shape, "dtype": dtype, "scope": weight.scope})
        end += parts[-2].size + parts[-1].size
    _write_in_blocks(parts, path)
    return places


def _write_in_blocks(parts: Sequence[np.ndarray], path: Path) -> None:
    """Write bytes in blocks that begin at multiples of their size.

    Linux keeps what is written in pages as large as one write. Weights that were written one by one, at odd offsets,
    take up to 1.4x of the time of a token until the file is read from the disk again (AMD EPYC, 2026-11-30).
    """
    block, filled = np.empty(_BLOCK, "uint8"), 0
    with path.open("wb", buffering=0) as file:
        for part in parts:
            while part.size:
                count = min(part.size, _BLOCK - filled)
                block[filled : filled + count] = part[:count]
                part, filled = part[count:], filled + count
                if filled == _BLOCK:
                    _write_all(file, block)
                    filled = 0
        _write_all(file, block[:filled])


def _write_all(file: io.RawIOBase, block: np.ndarray) -> None:
    left = memoryview(block)
    while left:
        left = left[file.write(left) :]


def _mapped(path: Path, dtype: str, offset: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.memmap(path, dtype, "c", offset, shape) if prod(shape) else np.empty(shape, dtype)


def map_weights(path: Path, places: Sequence[dict]) -> list[Weight]:
    """Return the weights that `write_weights` wrote, mapped: pages are loaded when they are read."""
    there = path.stat().st_size
    for each in places:
        known = each["dtype"] in STORABLE and each["scope"] in ("global", *SCOPES)
        if not known or each["offset"] + prod(each["shape"]) * number_bytes(each["dtype"]) > there:
            raise UserError(f"{path} does not hold the weights that are listed beside it; compile the model again.")
    # Mapped copy-on-write, as numpy does not export read-only arrays to other libraries.
    arrays = (_mapped(path, each["dtype"], each["offset"], tuple(each["shape"])) for each in places)
    return [Weight(tensor_of(array), each["scope"]) for array, each in zip(arrays, places, strict=True)]
