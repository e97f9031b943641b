# SPDX-License-Identifier: Apache-2.0
"""One ONNX node on its way to Relax, as a converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend


@dataclass(frozen=True)
class Node:
    """An operator with its inputs already in Relax.

    Attributes
    ----------
    bb : relax.BlockBuilder
        Where results are bound.
    op : str
        The operator; one of another domain than ONNX's as ``domain.operator``.
    inputs : sequence of relax.Expr or None
        None where an optional input is left out.
    attrs : dict
        Attributes as TVM parses them: strings are bytes, tensors TensorProto, nested graphs GraphProto.
    opset : int
        ONNX's version that the model states.
    outputs : int
        How many results the node names, left out ones included.
    narrow : sequence of str
        The type that the file states for each input, empty where it is not one of `smartmem_tvm.narrow`. May end early.
    convert : callable
        (node) -> what the converter of that node makes, of ours or of TVM's; see `call`.
    """

    bb: relax.BlockBuilder
    op: str
    inputs: Sequence[relax.Expr | None]
    attrs: dict[str, Any]
    opset: int
    outputs: int
    narrow: Sequence[str] = ()
    convert: Callable[[Node], relax.Expr] | None = None

    def input(self, position: int) -> relax.Expr | None:
        """The input at a position, None if it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def constant(self, position: int) -> np.ndarray | None:
        """The value of an input, None if it is left out or known only at run time."""
        return value_of(self.input(position))

    def type_of(self, position: int) -> str:
        """The type of an input's numbers, which in Relax may be kept in bytes."""
        narrow = self.narrow[position] if position < len(self.narrow) else ""
        return narrow or dtype_of(self.inputs[position])

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a string."""
        value = self.attrs.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def call(self, op: str, *inputs: relax.Expr | None, **attributes) -> relax.Var:
        """The first result of another operator of ONNX, as its converter computes it."""
        inputs = onnx_frontend.onnx_input(inputs)
        custom = {"tvm_custom": {**self.attrs.get("tvm_custom", {}), "num_outputs": 1}}
        result = self.convert(replace(self, op=op, inputs=inputs, attrs={**custom, **attributes}, outputs=1, narrow=()))
        result = result[0] if isinstance(result, relax.Tuple) else result
        return result if isinstance(result, GenericConst | relax.Var) else self.emit(result)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self.bb.emit(expr)

    def with_inputs(self, *inputs: relax.Expr | None, **attrs) -> Node:
        """The same operator on other inputs, with some attributes changed."""
        return replace(self, inputs=inputs, attrs={**self.attrs, **attrs})

    def by_tvm(self) -> relax.Expr:
        """What TVM's own converter makes of it."""
        convert = onnx_frontend._get_convert_map()[self.op].get_converter(self.opset)
        return self.bb.normalize(convert(self.bb, onnx_frontend.onnx_input(self.inputs), dict(self.attrs), [{}, {}]))

    def apply(self, name: str, *operands: relax.Expr) -> relax.Expr:
        """An operator on each number, which numpy and Relax call the same; of constants a constant.

        Relax folds constants as well, by compiling a kernel for each: seconds for the weights of a network.
        """
        values = [value_of(each) for each in operands]
        if any(value is None for value in values):
            return self.emit(getattr(relax.op, name)(*operands))
        dtype = dtype_of(operands[0])
        return constant(getattr(np, name)(*values).astype(dtype, copy=False), dtype)

    def astype(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """`x` in a type; of a constant a constant, unless numpy knows nothing of one of the types."""
        if dtype_of(x) == dtype:
            return x
        value = value_of(x)
        known = value is not None and value.dtype.kind in "iuf" and np.dtype(dtype).kind in "iuf"
        return constant(value, dtype) if known else self.emit(relax.op.astype(x, dtype))

    def reshape(self, x: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        """`x` in a shape; of a constant a constant."""
        value = value_of(x)
        if value is None:
            return self.emit(relax.op.reshape(x, shape))
        return relax.const(np.ascontiguousarray(value).reshape(shape), dtype_of(x))


def value_of(expr: relax.Expr | None) -> np.ndarray | None:
    """The value of a Relax constant, None for anything else."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def shape_of(expr: relax.Expr) -> list[int]:
    """The sizes of a tensor."""
    return [int(size) for size in expr.ty.shape]


def dtype_of(expr: relax.Expr) -> str:
    """The type of a tensor's numbers, as TVM writes it."""
    return str(expr.ty.dtype.dtype)


def astype(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor with numbers of another type."""
    return x if dtype_of(x) == dtype else node.emit(relax.op.astype(x, dtype))


def constant(value, dtype: str) -> relax.Expr:
    """A Relax constant of exactly this type."""
    return relax.const(np.asarray(value, dtype), dtype)
