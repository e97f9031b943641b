# SPDX-License-Identifier: Apache-2.0
"""TVM's ONNX importer, with cleaner Relax for some operators and errors that name the node."""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx
import tvm
from onnx.helper import get_attribute_value
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from smartmem_tvm._tvm import end_blocks
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import evaluate, undecided
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.bytes import NARROW, TYPES, keep_in_bytes
from smartmem_tvm.frontend.child_process import model_in_child_process
from smartmem_tvm.frontend.converters import CONVERTERS, Node
from smartmem_tvm.frontend.converters.node import constant, dtype_of, shape_of
from smartmem_tvm.frontend.converters.old_forms import newest_form
from smartmem_tvm.frontend.expand_functions import copy_of, opset_of
from smartmem_tvm.frontend.known_shapes import with_known_shapes
from smartmem_tvm.frontend.load_weights import Weights
from smartmem_tvm.frontend.most_numbers import MOST_NUMBERS, more_than_most
from smartmem_tvm.frontend.operand_types import misfit
from smartmem_tvm.frontend.operators import converter_name
from smartmem_tvm.frontend.sparse import dense
from smartmem_tvm.frontend.spec import with_names
from smartmem_tvm.frontend.tied_tables import readers_of_tied_tables

_METADATA_NOTE = "# Metadata omitted. Use show_meta=True in script() method to show it."
_OPERATOR_NOTE = re.compile(r"^In ir\.Op\(span=.*?support_level=\d+\), ")  # TVM's long description of an operator
_NUMBER = re.compile(r"T\.int64\((-?\d+)\)")
_LONGEST_REASON = 300  # characters
# Operators whose first input is a sequence of tensors.
_OF_SEQUENCES = {"ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap"}
# Operators whose result has a length that is known only at run time, and may be a result of the model.
_AS_LONG_AS_IT_TAKES = {"NonMaxSuppression"}
_LISTS = (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS)


def import_graph(model: onnx.ModelProto, weights: Weights, name: str) -> tvm.IRModule:
    """Convert a statically shaped ONNX model, whose operators are all known, to Relax.

    A tensor without elements becomes a constant, and so does a tensor computed from those alone: no kernel gets one.

    Initializers without data take their values from `weights`.

    Raises
    ------
    UserError
        If TVM's converter refuses a node, or the shape of a node's output depends on run-time data.
    """
    try:
        return _import(model, _Importer(weights, name))
    except _NoElements:
        folded = model_in_child_process(evaluate.fold, model, name=name, memory=weights.room)
        return _import(folded, _Importer(weights, name, with_empty=True))


def _import(model: onnx.ModelProto, importer: "_Importer") -> tvm.IRModule:
    model = copy_of(model)
    graph = model.graph
    for node in walk.nodes(graph):
        node.name = walk.node_label(node)
        node.op_type = converter_name(node)  # TVM reads the name, not the domain
    importer.remedy = partial(undecided.remedy, model)
    importer.tied = readers_of_tied_tables(graph, importer._weights)  # before bytes hold narrow types
    narrow = keep_in_bytes(model, importer.model_name)
    # Given here because TVM reads a size of 0 in the graph as unknown.
    importer._shape = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in graph.input}
    # The importer warns about each renamed input (their names are kept, see `spec`) and prints on errors.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), importer.closed_on_error():
        warnings.simplefilter("ignore")
        mod = importer.from_onnx(graph, opset_of(model))
    mod["main"] = _with_named_results(with_known_shapes(mod["main"]))
    mod = relax.transform.Normalize()(mod)  # the new body gets its type
    return with_names(mod, [value.name for value in graph.input], [value.name for value in graph.output], narrow)


def _with_named_results(func: relax.Function) -> relax.Function:
    """Return a function whose results have the names of the operators that compute them.

    TVM binds a result to another variable, ``gv``, whose name would be the operator's when that binding is gone.
    """
    named: dict[relax.Var, relax.Var] = {}

    def renamed(binding):
        var, value = binding.var, getattr(binding, "value", None)
        if isinstance(var, relax.DataflowVar) or not isinstance(value, relax.DataflowVar):
            return binding
        named[var] = relax.Var(value.name, var.ty)
        return relax.VarBinding(named[var], value)

    def block(each):
        kind = relax.DataflowBlock if isinstance(each, relax.DataflowBlock) else relax.BindingBlock
        return kind([renamed(binding) for binding in each.bindings])

    blocks = [block(each) for each in func.body.blocks]
    result = func.body.body
    if result not in named:
        return func
    return relax.Function(func.params, relax.SeqExpr(blocks, named[result]), func.ret_ty, func.is_pure, func.attrs)


class _NoElements(Exception):
    """The graph has a tensor without elements."""


class WeightsImporter(onnx_frontend.ONNXGraphImporter):
    """TVM's importer, for a model whose large weights are stored outside of the graph."""

    def __init__(self, weights: Weights, dtypes: str | dict[str, str]):
        super().__init__(shape_dict={}, dtype_dict=dtypes)
        self._weights = weights

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        return self._weights[tensor.name] if self._weights.hold(tensor) else super()._parse_array(tensor)


class _Importer(WeightsImporter):
    """An importer that uses `CONVERTERS` before TVM's own, without a change to TVM's global table.

    Every result is bound to a variable named after its ONNX node, so that later messages can name it.
    """

    def __init__(self, weights: Weights, model_name: str, with_empty: bool = False):
        super().__init__(weights, dtypes={})
        self.model_name = model_name
        self._with_empty = with_empty
        self.tied: set[str] = set()
        self.remedy: Callable[[str, str], str] = lambda label, usual: usual

    def _convert_operator(self, op_name, inputs, attrs, opset):
        label = attrs["tvm_custom"]["name"]
        self._refuse_unknown_lengths(inputs, op_name, label)
        outputs = attrs["tvm_custom"]["num_outputs"]
        self._refuse_no_sequence(op_name, label, inputs)
        if not self._with_empty and any(map(_is_empty, inputs)):
            raise _NoElements
        narrow = [NARROW.get(number, "") for number in attrs.pop(TYPES, ())]
        self._refuse_types(inputs, narrow, op_name, label, opset)
        try:
            node = Node(self.bb, op_name, inputs, attrs, opset, outputs, narrow, self._convert, label in self.tied)
            result = self._alone(self._bind(self._convert(node), label))
        except Exception as err:
            raise UserError(
                f"{self.model_name}: operator {op_name} (node {label}) cannot be imported, {_cause(err, inputs)}; "
                f"{self.remedy(label, 'export the model in another way or simplify this node first')}."
            ) from err
        self._refuse_dynamic(result, op_name, label)
        self._refuse_huge(result, op_name, label)
        if _is_empty(result):
            if not self._with_empty:
                raise _NoElements
            return constant(np.zeros(shape_of(result), dtype_of(result)), dtype_of(result))
        return result

    def _convert(self, node: Node) -> relax.Expr:
        node = newest_form(node)
        if not isinstance(node, Node):
            return node
        convert = CONVERTERS.get(node.op)
        result = convert(node) if convert else None
        return super()._convert_operator(node.op, node.inputs, node.attrs, node.opset) if result is None else result

    def _construct_nodes(self, graph):
        super()._construct_nodes(graph)
        for value in graph.output:
            result = self._nodes[value.name]
            _refuse_other_type(result, value, self.model_name)

    def _parse_attr(self, attr_proto):
        # TVM fails on a list without elements, which means the same as no list.
        kept = [each for each in attr_proto if each.type not in _LISTS or len(get_attribute_value(each))]
        return super()._parse_attr([dense(each) for each in kept])

    def _sanitize_name(self, name):
        return super()._sanitize_name(re.sub(r"\s", "_", name))

    def _check_for_unsupported_ops(self, graph):
        """Do nothing: TVM's check knows its own converters only; see `operators.refuse_unsupported`."""

    def _bind(self, result: relax.Expr, label: str) -> relax.Expr:
        result = self.bb.normalize(result)
        if not isinstance(result, relax.Call):
            return result
        return self.bb.emit(result, name_hint=re.sub(r"\W+", "_", label).strip("_"))

    def _alone(self, result: relax.Expr) -> relax.Expr:
        """Unpack the only result of an operator that may have several: the next operator takes no tuple."""
        if not isinstance(result.ty, relax.TupleType) or len(result.ty.fields) != 1:
            return result
        return result.fields[0] if isinstance(result, relax.Tuple) else self.bb.emit(relax.TupleGetItem(result, 0))

    def _refuse_unknown_lengths(self, inputs, op_name: str, label: str) -> None:
        for each in inputs:
            if isinstance(each, relax.Expr) and not all(map(_is_static, _tensor_types(each.ty))):
                raise UserError(
                    f"{self.model_name}: operator {op_name} (node {label}) reads a tensor whose length is known only "
                    f"at run time, and only a result of the model may be one; cut the model there."
                )

    def _refuse_types(self, inputs, narrow: Sequence[str], op_name: str, label: str, opset: int) -> None:
        types = [getattr(each, "ty", None) for each in inputs]
        dtypes = [dtype_of(each) if isinstance(ty, relax.TensorType) else None for each, ty in zip(inputs, types)]
        for number, name in enumerate(narrow):
            dtypes[number] = None if name else dtypes[number]  # stored in bytes, so its type is not checked
        if reason := misfit(op_name, opset, dtypes):
            raise UserError(
                f"{self.model_name}: operator {op_name} (node {label}) is wrong: {reason}; "
                f"{self.remedy(label, 'export it again')}."
            )

    def _refuse_dynamic(self, result: relax.Expr, op_name: str, label: str) -> None:
        if op_name not in _AS_LONG_AS_IT_TAKES and not all(map(_is_static, _tensor_types(result.ty))):
            raise UserError(
                f"{self.model_name}: the shape of what operator {op_name} (node {label}) computes depends "
                f"on run-time data, and only static shapes are supported; "
                f"{self.remedy(label, 'remove the node from the export')}."
            )

    def _refuse_huge(self, result: relax.Expr, op_name: str, label: str) -> None:
        """Refuse sizes from the file that no memory holds or that 32-bit indices cannot reach."""
        for ty in filter(_is_static, _tensor_types(result.ty)):
            if count := more_than_most(ty.shape):
                raise UserError(
                    f"{self.model_name}: operator {op_name} (node {label}) makes a tensor of {count} numbers, and "
                    f"{MOST_NUMBERS} is the most that kernels index; give smaller sizes."
                )

    def _refuse_no_sequence(self, op_name: str, label: str, inputs: Sequence[relax.Expr]) -> None:
        """Refuse a tensor in the place of a sequence: TVM's converters would read its parts endlessly."""
        if op_name in _OF_SEQUENCES and isinstance(inputs[0].ty, relax.TensorType):
            raise UserError(
                f"{self.model_name}: operator {op_name} (node {label}) takes a sequence and gets a tensor; export the "
                f"model again."
            )

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Turn an error of TVM outside of nodes into a UserError; end the open block, of which C++ would warn."""
        try:
            yield
        except Exception as err:
            end_blocks(self.bb)
            if isinstance(err, UserError | _NoElements):
                raise
            raise UserError(f"{self.model_name}: TVM's importer refuses the graph: {_reason(err)}.") from err


def _tensor_types(ty: tvm.ir.Type) -> Iterator[relax.TensorType]:
    if isinstance(ty, relax.TensorType):
        yield ty
    elif isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _tensor_types(field)


def _refuse_other_type(result: relax.Expr, value: onnx.ValueInfoProto, model: str) -> None:
    """Refuse an output that differs from its type or shape in the file: either the file or a converter is wrong.

    An empty list of sizes means unknown: exporters write it, and ONNX Runtime accepts it.
    """
    kind = value.type.tensor_type
    if not isinstance(result.ty, relax.TensorType) or not kind.elem_type:
        return
    stated = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    sizes = kind.shape.dim
    found = [int(size) if isinstance(size, tvm.tirx.IntImm) else "?" for size in result.ty.shape]
    same_shape = not sizes or (
        len(sizes) == len(found)
        and all(
            size == "?" or not dim.HasField("dim_value") or dim.dim_value in (-1, size)
            for dim, size in zip(sizes, found)
        )
    )
    if stated != dtype_of(result) or not same_shape:
        shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in sizes]
        raise UserError(
            f"{model} declares its output '{value.name}' as {stated} {shape}, but its nodes compute "
            f"{dtype_of(result)} {found}; export it again with the right type."
        )


def _is_empty(expr: relax.Expr | None) -> bool:
    """Whether a tensor other than a constant has no elements."""
    ty = None if expr is None or isinstance(expr, GenericConst) else expr.ty
    return isinstance(ty, relax.TensorType) and any(
        isinstance(dim, tvm.tirx.IntImm) and int(dim) == 0 for dim in ty.shape
    )


def _is_static(ty: relax.TensorType) -> bool:
    dims = ty.shape if isinstance(ty.shape, relax.ShapeExpr) else [None]
    return all(isinstance(dim, tvm.tirx.IntImm) for dim in dims)


def _cause(err: Exception, inputs: Sequence[relax.Expr | None]) -> str:
    """Return why a converter failed: its message, or, for a Python error, the input that is not a constant."""
    if not isinstance(err, AttributeError | TypeError | LookupError):
        return _reason(err)
    unknown = [str(number) for number, each in enumerate(inputs) if number and _is_setting(each)]
    if unknown:
        return f"what its input {' and '.join(unknown)} says is known only at run time; make it an initializer"
    return f"TVM's importer fails with {type(err).__name__}: {_reason(err)}"


def _is_setting(expr: relax.Expr | None) -> bool:
    """Whether a tensor is not a constant and may hold axes, sizes or a count."""
    ty = None if expr is None or isinstance(expr, GenericConst) else expr.ty
    return isinstance(ty, relax.TensorType) and ty.ndim in (0, 1) and str(ty.dtype).startswith("int")


def _reason(err: Exception) -> str:
    """Return an error's text in one line, without a final full stop, shortened if it quotes a whole program."""
    text = " ".join(str(err).replace(_METADATA_NOTE, "").split()).rstrip(".") or type(err).__name__
    text = _NUMBER.sub(r"\1", _OPERATOR_NOTE.sub("", text))
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."
