# SPDX-License-Identifier: Apache-2.0
"""FoldConstants: numpy folds the operators over constants whose results equal a compiled kernel's to the bit."""

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

# Operator -> the types of its numbers, and its numpy function. Only correctly rounded functions: numpy's exp differs
# from LLVM's.
_COMPUTED: Mapping[str, tuple[tuple[str, ...], Callable]] = MappingProxyType(
    {
        "add": (_NUMBERS, np.add),
        "subtract": (_NUMBERS, np.subtract),
        "multiply": (_NUMBERS, np.multiply),
        "divide": (_FLOATS, np.divide),
        "negative": (_FLOATS, np.negative),
        "sqrt": (_FLOATS, np.sqrt),
        "rsqrt": (_FLOATS, lambda x: np.divide(x.dtype.type(1), np.sqrt(x))),
        # Exporters wrap constant indices that count from the end by a comparison.
        "less": (_NUMBERS, np.less),
        "less_equal": (_NUMBERS, np.less_equal),
        "greater": (_NUMBERS, np.greater),
        "greater_equal": (_NUMBERS, np.greater_equal),
        "equal": (_NUMBERS, np.equal),
        "not_equal": (_INTEGERS, np.not_equal),  # TVM's treats NaN as equal to itself
        "where": (_NUMBERS, np.where),
    }
)
# Operators that keep the order of elements: the shape of the result determines the result.
_RESHAPED = ("reshape", "expand_dims", "squeeze", "flatten")
_MOVED = ("permute_dims", "strided_slice", "broadcast_to", "take", "repeat")
_WIDENED = {(np.dtype(kind), "float32") for kind in ("int8", "uint8", "int16")}


@tvm.transform.module_pass(opt_level=0, name="smartmem.FoldConstants")
class FoldConstants:
    """Write the results of arithmetic, comparisons and movements of constants as constants.

    Before::

        s = rsqrt(add(constant, 1e-05));   y = multiply(x, reshape(s, (1, 64, 1, 1)))

    After::

        y = multiply(x, constant)

    TVM's FoldConstant, which comes afterwards for all other operators, lowers and compiles a kernel for each operator:
    half of the compile time of a network with many batch normalizations.
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
        if name not in (*_COMPUTED, *_RESHAPED, *_MOVED, "astype") or not _has_known_shape(call.ty):
            return call
        tensors = [arg for arg in call.args if isinstance(getattr(arg, "ty", None), relax.TensorType)]
        operands = [self._known(arg) for arg in tensors]
        if any(each is None for each in operands):
            return call
        result = _result(name, call, operands)
        return call if result is None else as_constant(result)

    def _known(self, arg: relax.Expr) -> np.ndarray | None:
        """Return the numbers of a constant, or of a variable bound to one; None for any other expression."""
        if isinstance(arg, relax.Var):
            arg = self.lookup_binding(arg)
        tensor = isinstance(arg, ir.Constant) and isinstance(arg.ty, relax.TensorType)
        return arg.value.numpy() if tensor else None


def _result(name: str, call: relax.Call, operands: list[np.ndarray]) -> np.ndarray | None:
    """Return an operator's result over arrays; None where it is left to a kernel."""
    dtype, shape = str(call.ty.dtype.dtype), tuple(int(size) for size in call.ty.shape)
    types, compute = _COMPUTED.get(name, ((*_NUMBERS, "bool"), None))
    numbers = {"where": operands[1:], "take": operands[:1]}.get(name, operands)
    if any(str(each.dtype) not in types or each.dtype != numbers[0].dtype for each in numbers):
        return None
    if name == "astype":  # bytes are floats to the bit; other casts are TVM's
        return operands[0].astype(dtype) if (operands[0].dtype, dtype) in _WIDENED else None
    if name == "permute_dims":
        return np.transpose(operands[0], call.attrs.axes and [int(axis) for axis in call.attrs.axes])
    if name == "strided_slice":
        return _sliced(call, operands[0], shape)
    if name == "broadcast_to":
        return np.ascontiguousarray(np.broadcast_to(operands[0], shape))
    if name == "repeat":
        known = call.attrs.axis is not None
        return np.repeat(operands[0], int(call.attrs.repeats), int(call.attrs.axis)) if known else None
    if name == "take":
        return _taken(call, *operands)
    if compute is None:
        return operands[0].reshape(shape)
    with np.errstate(all="ignore"):  # infinities and integer overflow are valid results
        result = np.asarray(compute(*operands))
    return result if str(result.dtype) == dtype else None


def _sliced(call: relax.Call, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a slice with a positive step and bounds counted from the start; None for others, left to TVM."""
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
    """Return the elements at places of an axis that are all within bounds; None for others, left to TVM."""
    if call.attrs.axis is None or not tensor.ndim:
        return None
    axis = int(call.attrs.axis)
    inside = np.all((places >= 0) & (places < tensor.shape[axis]))
    return np.ascontiguousarray(np.take(tensor, places.astype("int64"), axis)) if inside else None


def _has_known_shape(ty: relax.TensorType) -> bool:
    """Whether all dimensions are known; true of scalars."""
    return isinstance(ty.shape, relax.ShapeExpr) and all(isinstance(dim, tirx.IntImm) for dim in ty.shape)


def _integers(numbers: relax.Expr) -> list[int] | None:
    known = isinstance(numbers, ir.Tuple) and all(isinstance(each, tirx.IntImm) for each in numbers.fields)
    return [int(each) for each in numbers.fields] if known else None


def _shape(call: relax.Call) -> relax.Expr:
    """Return the sizes of a shape as a constant, if they are known."""
    sizes = getattr(call.args[0].ty, "values", None)  # also the type of `shape_of`
    known = sizes is not None and all(isinstance(size, tirx.IntImm) for size in sizes)
    return as_constant(np.array([int(size) for size in sizes], "int64")) if known else call
