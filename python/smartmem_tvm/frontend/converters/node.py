# SPDX-License-Identifier: Apache-2.0
"""An ONNX node as the argument of a converter to Relax."""

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
    """An ONNX operator whose inputs are Relax expressions.

    Attributes
    ----------
    bb : relax.BlockBuilder
        The builder that binds results.
    op : str
        The operator's name; ``domain.operator`` for a domain other than ONNX's.
    inputs : sequence of relax.Expr or None
        The inputs; None for an omitted optional input.
    attrs : dict
        Attributes as TVM parses them: strings are bytes, tensors TensorProto, nested graphs GraphProto.
    opset : int
        ONNX's version that the model states.
    outputs : int
        The number of results that the node names, omitted ones included.
    narrow : sequence of str
        The type that the file states for each input, empty if it is not one of `smartmem_tvm.narrow`. May be shorter
        than the inputs.
    convert : callable
        (node) -> the result of that node's converter, ours or TVM's; see `call`.
    tied : bool
        Rows are gathered of a table that is the weight of a product, too.
    """

    bb: relax.BlockBuilder
    op: str
    inputs: Sequence[relax.Expr | None]
    attrs: dict[str, Any]
    opset: int
    outputs: int
    narrow: Sequence[str] = ()
    convert: Callable[[Node], relax.Expr] | None = None
    tied: bool = False

    def input(self, position: int) -> relax.Expr | None:
        """Return the input at a position, None if it is omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def constant(self, position: int) -> np.ndarray | None:
        """Return the value of an input, None if it is omitted or known only at run time."""
        return value_of(self.input(position))

    def type_of(self, position: int) -> str:
        """Return the type of an input's numbers, which Relax may store in bytes."""
        narrow = self.narrow[position] if position < len(self.narrow) else ""
        return narrow or dtype_of(self.inputs[position])

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute that is a string."""
        value = self.attrs.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def call(self, op: str, *inputs: relax.Expr | None, **attributes) -> relax.Var:
        """Convert another operator of ONNX and return its first result."""
        inputs = onnx_frontend.onnx_input(inputs)
        custom = {"tvm_custom": {**self.attrs.get("tvm_custom", {}), "num_outputs": 1}}
        result = self.convert(replace(self, op=op, inputs=inputs, attrs={**custom, **attributes}, outputs=1, narrow=()))
        result = result[0] if isinstance(result, relax.Tuple) else result
        return result if isinstance(result, GenericConst | relax.Var) else self.emit(result)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self.bb.emit(expr)

    def with_inputs(self, *inputs: relax.Expr | None, **attrs) -> Node:
        """Return the same operator with other inputs and with some attributes changed."""
        return replace(self, inputs=inputs, attrs={**self.attrs, **attrs})

    def by_tvm(self) -> relax.Expr:
        """Convert the node with TVM's own converter."""
        convert = onnx_frontend._get_convert_map()[self.op].get_converter(self.opset)
        return self.bb.normalize(convert(self.bb, onnx_frontend.onnx_input(self.inputs), dict(self.attrs), [{}, {}]))

    def apply(self, name: str, *operands: relax.Expr) -> relax.Expr:
        """Apply an element-wise operator that has the same name in numpy and Relax; constants give a constant.

        Relax also folds constants, but compiles a kernel for each: seconds for the weights of a network.
        """
        values = [value_of(each) for each in operands]
        if any(value is None for value in values):
            return self.emit(getattr(relax.op, name)(*operands))
        dtype = dtype_of(operands[0])
        return constant(getattr(np, name)(*values).astype(dtype, copy=False), dtype)

    def astype(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """Cast `x`; a constant stays a constant unless numpy lacks one of the types."""
        if dtype_of(x) == dtype:
            return x
        value = value_of(x)
        known = value is not None and value.dtype.kind in "iuf" and np.dtype(dtype).kind in "iuf"
        return constant(value, dtype) if known else self.emit(relax.op.astype(x, dtype))

    def reshape(self, x: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        """Reshape `x`; a constant stays a constant."""
        value = value_of(x)
        if value is None:
            return self.emit(relax.op.reshape(x, shape))
        return relax.const(np.ascontiguousarray(value).reshape(shape), dtype_of(x))


def value_of(expr: relax.Expr | None) -> np.ndarray | None:
    """Return the value of a Relax constant, None for any other expression."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def shape_of(expr: relax.Expr) -> list[int]:
    """Return the sizes of a tensor."""
    return [int(size) for size in expr.ty.shape]


def dtype_of(expr: relax.Expr) -> str:
    """Return the type of a tensor's numbers in TVM's notation."""
    return str(expr.ty.dtype.dtype)


def astype(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """Cast a tensor to another type."""
    return x if dtype_of(x) == dtype else node.emit(relax.op.astype(x, dtype))


def constant(value, dtype: str) -> relax.Expr:
    """Return a Relax constant of exactly this type."""
    return relax.const(np.asarray(value, dtype), dtype)
