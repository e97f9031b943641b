# SPDX-License-Identifier: Apache-2.0
"""The arguments of a compiled function: matched by place or by name, checked, and moved to the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..errors import UserError, shape_text
from ..ir.public_functions import input_names
from ..ir.sizes import WEIGHT_ALIGNMENT
from ..narrow import INPUT_TYPES, is_narrow, stated_types, storage_of, to_bytes
from ..tensor_arrays import array_of

_DEFAULT_STREAM = 1  # CUDA's, in DLPack's protocol
_LISTED = 6  # names that an error lists: a module of TVM's `nn` has hundreds of parameters
Dims = tuple[int | tirx.Var | None, ...]


@dataclass(frozen=True)
class TensorKind:
    """A parameter that takes a tensor.

    Attributes
    ----------
    dims : tuple or None
        The size of each dimension, or the variable of its size, or None for a size that is computed from others and not
        checked here. None if the rank is unknown.
    dtype : str
        The type in memory, see `narrow`; empty if unknown.
    stated : str
        The narrow type that the model states; empty if its type is not narrow.
    """

    dims: Dims | None
    dtype: str
    stated: str = ""

    def __str__(self) -> str:
        size = "any shape" if self.dims is None else _size(self.dims)
        return f"{size} {self.stated or self.dtype}".rstrip()


@dataclass(frozen=True)
class TupleKind:
    """A parameter that takes a tuple of values of these kinds."""

    fields: tuple

    def __str__(self) -> str:
        return f"tuple of {len(self.fields)}"


@dataclass(frozen=True)
class ShapeKind:
    """A parameter that takes a shape; `dims` as for a tensor."""

    dims: Dims | None

    def __str__(self) -> str:
        return "shape"


@dataclass(frozen=True)
class OtherKind:
    """A number, or an object of TVM's runtime, passed to the virtual machine unchanged."""

    def __str__(self) -> str:
        return "object"


Kind = TensorKind | TupleKind | ShapeKind | OtherKind


@dataclass(frozen=True)
class Parameter:
    """An input of a function: its name and its kind."""

    name: str
    kind: Kind


def parameters(mod: tvm.IRModule, function: str) -> list[Parameter]:
    """Return the inputs of a function, without the parameters for weights that `deploy.weights.lift_weights` added."""
    func = mod[function]
    attrs = func.attrs or {}
    params = list(func.params)[: int(attrs["num_input"]) if "num_input" in attrs else None]
    names, stated = input_names(func), stated_types(mod, INPUT_TYPES, function) or [""] * len(params)
    return [Parameter(name, _kind(param.ty, narrow)) for name, param, narrow in zip(names, params, stated, strict=True)]


def parameter_of_file(name: str, shape: Sequence[int], dtype: str) -> Parameter:
    """Return an input as described in the manifest of a compiled model."""
    return Parameter(name, TensorKind(tuple(shape), storage_of(dtype), dtype if is_narrow(dtype) else ""))


def arguments(
    function: str,
    params: Sequence[Parameter],
    inputs: Sequence,
    named: Mapping[str, object],
    device: tvm.runtime.Device,
    put: Callable[[np.ndarray], tvm.runtime.Tensor],
) -> list:
    """Return the arguments for the virtual machine, in the order of the parameters.

    Parameters
    ----------
    function : str
        Name of the function, for errors.
    inputs : sequence
        Values in the order of the parameters, or one mapping of names. A tensor is given as an array, or as a value
        that numpy converts to one; a tensor of TVM on `device` is passed on without a copy. A tuple is given as a tuple
        or list, a shape as sizes.
    named : mapping
        The other values, by name.
    put : callable
        Array -> tensor on `device`.

    Raises
    ------
    UserError
        If there are too few or too many values or an unknown name, or if a value has another dtype, shape or kind than
        its parameter. Two sizes with the same variable must be equal. Nothing is cast.
    """
    reader = _Reader(function, device, put)
    given = _by_name(function, params, inputs, named)
    wheres = [f"Input '{param.name}' of function '{function}'" for param in params]
    return [reader.read(where, param.kind, given[param.name]) for where, param in zip(wheres, params, strict=True)]


def in_order(names: Sequence[str], inputs: Sequence, named: Mapping[str, object]) -> list | None:
    """Return inputs, which may be given by name, in the order of the names; None if they are others or not as many."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        given = {**inputs[0], **named}
    else:
        given = {**dict(zip(names, inputs)), **named} if len(inputs) <= len(names) else {}
    return [given[name] for name in names] if given.keys() == set(names) else None


def _by_name(function: str, params: Sequence[Parameter], inputs: Sequence, named: Mapping) -> dict[str, object]:
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        twice = inputs[0].keys() & named.keys()
        given, inputs = {**inputs[0], **named}, ()
    else:
        given, twice = dict(named), named.keys() & {param.name for param in params[: len(inputs)]}
    takes = f"Function '{function}' takes {len(params)} input{'' if len(params) == 1 else 's'} ({_listing(params)})"
    if len(inputs) > len(params):
        raise UserError(f"{takes}, and {len(inputs)} were given: leave {len(inputs) - len(params)} out.")
    for name in sorted(twice):
        raise UserError(f"Input '{name}' of function '{function}' was given twice: give it by place or by name.")
    for name in sorted(map(str, given.keys() - {param.name for param in params})):
        raise UserError(f"{takes}, and '{name}' is none of them: use one of these names.")
    given |= {param.name: value for param, value in zip(params, inputs)}
    missing = [param.name for param in params if param.name not in given]
    if missing:
        raise UserError(f"{takes}, and {len(given)} came: '{missing[0]}' is missing, give it by place or by name.")
    return given


@dataclass
class _Reader:
    function: str
    device: tvm.runtime.Device
    put: Callable[[np.ndarray], tvm.runtime.Tensor]
    sizes: dict[tirx.Var, tuple[int, str]] = field(default_factory=dict)  # with the input that set each size first

    def read(self, where: str, kind: Kind, value):
        if isinstance(kind, TensorKind):
            return self._tensor(where, kind, value)
        if isinstance(kind, TupleKind):
            found = len(value) if isinstance(value, (list, tuple, tvm_ffi.Array)) else type(value).__name__
            if found != len(kind.fields):
                count = len(kind.fields)
                raise UserError(f"{where} is a tuple of {count}, not {found}: give a tuple or a list of these.")
            pairs = zip(kind.fields, value, strict=True)
            return [self.read(f"Item {at} of {_lower(where)}", *pair) for at, pair in enumerate(pairs)]
        return self._shape(where, kind, value) if isinstance(kind, ShapeKind) else value

    def _tensor(self, where: str, kind: TensorKind, value) -> tvm.runtime.Tensor:
        there = foreign(value, self.device)
        if there is not None:
            self._check(where, kind, tuple(map(int, there.shape)), str(there.dtype), str(there.dtype))
            if there is value or is_readable(there):
                return there
            return self.put(array_of(there)) if self.device == tvm.cpu() else there.copyto(self.device)
        array = _array(where, value)
        self._check(where, kind, array.shape, str(to_bytes(array).dtype), str(array.dtype))
        return self.put(array)

    def _check(self, where: str, kind: TensorKind, shape: tuple[int, ...], kept: str, dtype: str) -> None:
        wanted = kind.stated or kind.dtype
        # Bytes are accepted for a narrow type, but one narrow type is not accepted for another.
        if kind.dtype and (kept != kind.dtype or (is_narrow(dtype) and dtype != wanted)):
            raise UserError(f"{where} has dtype {dtype}, and it takes {wanted}: convert it with .astype('{wanted}').")
        self._sizes(where, kind.dims, shape)

    def _shape(self, where: str, kind: ShapeKind, value) -> tvm_ffi.Shape:
        try:
            sizes = tuple(size.__index__() for size in value)
        except (TypeError, AttributeError):
            raise UserError(f"{where} is a shape, not {type(value).__name__}: give a tuple of integers.") from None
        self._sizes(where, kind.dims, sizes)
        return tvm_ffi.Shape(sizes)

    def _sizes(self, where: str, dims: Dims | None, shape: tuple[int, ...]) -> None:
        if dims is None:
            return
        if len(shape) != len(dims) or any(isinstance(dim, int) and dim != size for dim, size in zip(dims, shape)):
            raise UserError(f"{where} has shape {_size(shape)}, and it takes {_size(dims)}: give it in that shape.")
        for dim, size in zip(dims, shape, strict=True):
            if not isinstance(dim, tirx.Var):
                continue
            before, there = self.sizes.setdefault(dim, (size, where))
            if before != size:
                raise UserError(
                    f"{where} has shape {_size(shape)}, and it takes {_size(dims)} with {dim.name} = {before} of "
                    f"{_lower(there)}: give both with one {dim.name}."
                )


def foreign(value: object, device: tvm.runtime.Device) -> tvm.runtime.Tensor | None:
    """Return a tensor of TVM, or of another library by DLPack, in the same memory; None if it is not on `device`."""
    if not isinstance(value, tvm.runtime.Tensor):
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return None
        if getattr(value, "requires_grad", False):
            return None  # it requires a gradient, which the model does not compute
        try:
            if hasattr(value, "is_neg") and value.is_neg():
                value = value.resolve_neg()  # DLPack cannot express torch's negative bit, on views of complex numbers
            cuda = device.dlpack_device_type() == tvm.cuda().dlpack_device_type()
            # The stream of TVM's kernels waits for pending work of the tensor's library.
            value = tvm_ffi.from_dlpack(value.__dlpack__(stream=_DEFAULT_STREAM) if cuda else value)
        except (BufferError, RuntimeError, TypeError, ValueError):  # a sparse tensor, or a type that DLPack lacks
            return None
    return value if value.device == device else None


def is_readable(tensor: tvm.runtime.Tensor) -> bool:
    """Whether kernels can read a tensor in place: it must be contiguous and aligned for vectors."""
    return tensor.is_contiguous() and not tensor.data_ptr() % WEIGHT_ALIGNMENT


def _array(where: str, value) -> np.ndarray:
    try:
        array = np.asarray(value.numpy() if isinstance(value, tvm.runtime.Tensor) else value, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise UserError(f"{where} is no array to numpy ({reason}): give a numpy array.") from error
    if array.dtype.kind in "OUSMm":
        raise UserError(f"{where} is a tensor, not {type(value).__name__}: give a numpy array.")
    return array


def _kind(ty: ir.Type, stated: str = "") -> Kind:
    if isinstance(ty, relax.TensorType):
        dtype = str(ty.dtype.dtype) if ty.dtype is not None else ""
        return TensorKind(_dims(ty.shape, ty.ndim), "" if dtype == "void" else dtype, stated)
    if isinstance(ty, relax.TupleType):
        return TupleKind(tuple(map(_kind, ty.fields)))
    return ShapeKind(_dims(ty.values, ty.ndim)) if isinstance(ty, relax.ShapeType) else OtherKind()


def _dims(dims: Sequence | None, rank: int) -> Dims | None:
    if dims is None or isinstance(dims, relax.Var):  # a variable: the shape is itself a value
        return (None,) * rank if rank >= 0 else None
    known = (int(dim) if isinstance(dim, int | tirx.IntImm) else dim for dim in dims)
    return tuple(dim if isinstance(dim, int | tirx.Var) else None for dim in known)


def _listing(params: Sequence[Parameter]) -> str:
    more = f", ... {len(params) - _LISTED} more" if len(params) > _LISTED else ""
    return (", ".join(f"'{param.name}' {param.kind}" for param in params[:_LISTED]) or "none") + more


def _size(dims: Sequence) -> str:
    return shape_text(getattr(dim, "name", "?" if dim is None else dim) for dim in dims)


def _lower(where: str) -> str:
    return where[0].lower() + where[1:]
