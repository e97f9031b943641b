# SPDX-License-Identifier: Apache-2.0
"""FoldConstants: what numpy makes of constants, to the bit as a compiled kernel would, needs no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.block import as_constant, operator
from ...ir.rewrite_calls import rewrite_calls

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = (*_FLOATS, *_INTEGERS)

# Operator -> the types of its numbers, and how it is computed. Correctly rounded functions only: numpy's exp is not
# LLVM's.
_COMPUTED: Mapping[str, tuple[tuple[str, ...], Callable]] = MappingProxyType(
    {
        "add": (_NUMBERS, np.add),
        "subtract": (_NUMBERS, np.subtract),
        "multiply": (_NUMBERS, np.multiply),
        "divide": (_FLOATS, np.divide),
        "negative": (_FLOATS, np.negative),
        "sqrt": (_FLOATS, np.sqrt),
        "rsqrt": (_FLOATS, lambda x: np.divide(x.dtype.type(1), np.sqrt(x))),
        # Indices from the end: exporters write them out at each place that reads at constant ones.
        "less": (_NUMBERS, np.less),
        "less_equal": (_NUMBERS, np.less_equal),
        "greater": (_NUMBERS, np.greater),
        "greater_equal": (_NUMBERS, np.greater_equal),
        "equal": (_NUMBERS, np.equal),
        "not_equal": (_INTEGERS, np.not_equal),  # TVM's takes NaN for equal to itself
        "where": (_NUMBERS, np.where),
    }
)
# What moves numbers: the shape of the result says where to.
_RESHAPED = ("reshape", "expand_dims", "squeeze", "flatten")
_MOVED = ("permute_dims", "strided_slice", "broadcast_to", "take")


@tvm.transform.module_pass(opt_level=0, name="smartmem.FoldConstants")
class FoldConstants:
    """Write the results of arithmetic, comparisons and movements of constants as constants.

    Before::

        s = rsqrt(add(constant, 1e-05));   y = multiply(x, reshape(s, (1, 64, 1, 1)))

    After::

        y = multiply(x, constant)

    TVM's FoldConstant, which comes afterwards for all other operators, lowers and compiles each of these for itself:
    half of the time of a network with many batch normalizations.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Folded(mod))


@mutator
class _Folded(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = operator(call)
        if name == "shape_to_tensor":
            return _shape(call)
        if name not in (*_COMPUTED, *_RESHAPED, *_MOVED) or not _has_known_shape(call.ty):
            return call
        tensors = [arg for arg in call.args if isinstance(getattr(arg, "ty", None), relax.TensorType)]
        operands = [self._known(arg) for arg in tensors]
        if any(each is None for each in operands):
            return call
        result = _result(name, call, operands)
        return call if result is None else as_constant(result)

    def _known(self, arg: relax.Expr) -> np.ndarray | None:
        """The numbers of a constant, or of a variable that is bound to one; None for anything else."""
        if isinstance(arg, relax.Var):
            arg = self.lookup_binding(arg)
        tensor = isinstance(arg, ir.Constant) and isinstance(arg.ty, relax.TensorType)
        return arg.value.numpy() if tensor else None


def _result(name: str, call: relax.Call, operands: list[np.ndarray]) -> np.ndarray | None:
    """What an operator makes of arrays, None where that is left to a kernel."""
    dtype, shape = str(call.ty.dtype.dtype), tuple(int(size) for size in call.ty.shape)
    types, compute = _COMPUTED.get(name, ((*_NUMBERS, "bool"), None))
    numbers = {"where": operands[1:], "take": operands[:1]}.get(name, operands)
    if any(str(each.dtype) not in types or each.dtype != numbers[0].dtype for each in numbers):
        return None
    if name == "permute_dims":
        return np.transpose(operands[0], call.attrs.axes and [int(axis) for axis in call.attrs.axes])
    if name == "strided_slice":
        return _sliced(call, operands[0], shape)
    if name == "broadcast_to":
        return np.ascontiguousarray(np.broadcast_to(operands[0], shape))
    if name == "take":
        return _taken(call, *operands)
    if compute is None:
        return operands[0].reshape(shape)
    with np.errstate(all="ignore"):  # infinities and what wraps around are results like others
        result = np.asarray(compute(*operands))
    return result if str(result.dtype) == dtype else None


def _sliced(call: relax.Call, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """A part that steps forwards between places counted from the beginning; None for others, which TVM knows."""
    given = [_integers(arg) for arg in call.args[1:]]
    if any(each is None for each in given):
        return None
    axes, begins, ends, *steps = given
    places = [slice(None)] * tensor.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps[0] if steps else [1] * len(axes), strict=True):
        if not (0 <= axis < tensor.ndim and 0 <= begin <= end and step > 0):
            return None
        places[axis] = slice(begin, end, step)
    part = tensor[tuple(places)]
    return part if part.shape == shape else None


def _taken(call: relax.Call, tensor: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    """The parts at places of an axis that are all inside of it; None for others, which TVM knows."""
    if call.attrs.axis is None or not tensor.ndim:
        return None
    axis = int(call.attrs.axis)
    inside = np.all((places >= 0) & (places < tensor.shape[axis]))
    return np.ascontiguousarray(np.take(tensor, places.astype("int64"), axis)) if inside else None


def _has_known_shape(ty: relax.TensorType) -> bool:
    """Whether all dimensions are numbers; scalars have none."""
    return isinstance(ty.shape, relax.ShapeExpr) and all(isinstance(dim, tirx.IntImm) for dim in ty.shape)


def _integers(numbers: relax.Expr) -> list[int] | None:
    known = isinstance(numbers, ir.Tuple) and all(isinstance(each, tirx.IntImm) for each in numbers.fields)
    return [int(each) for each in numbers.fields] if known else None


def _shape(call: relax.Call) -> relax.Expr:
    """The sizes of a shape as a constant, if they are known."""
    sizes = getattr(call.args[0].ty, "values", None)  # of `shape_of` as well
    known = sizes is not None and all(isinstance(size, tirx.IntImm) for size in sizes)
    return as_constant(np.array([int(size) for size in sizes], "int64")) if known else call
