# SPDX-License-Identifier: Apache-2.0
"""TVM's ONNX importer, with cleaner Relax for some operators and errors that name the node."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import graph as walk
from smartmem_tvm.frontend.converters import CONVERTERS, Node
from smartmem_tvm.frontend.operators import converter_name
from smartmem_tvm.frontend.spec import with_names
from smartmem_tvm.frontend.weights import Weights

_METADATA_NOTE = "# Metadata omitted. Use show_meta=True in script() method to show it."
_LONGEST_REASON = 300  # characters
# Operators whose result has a length that is known only at run time, and may be a result of the model.
_AS_LONG_AS_IT_TAKES = {"NonMaxSuppression"}


def import_graph(model: onnx.ModelProto, weights: Weights, name: str) -> tvm.IRModule:
    """Convert a statically shaped ONNX model, whose operators are all known, to Relax.

    The values of initializers without data are those of `weights`.

    Nodes without a name get one, in place, and the operators of other domains the names of their converters.

    Raises
    ------
    UserError
        If TVM's converter refuses a node, or the shape of a node's output depends on run-time data.
    """
    for node in walk.nodes(model.graph):
        node.name = walk.node_label(node)
        node.op_type = converter_name(node)  # TVM looks at the name alone, never at the domain
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    importer = _Importer(weights, name)
    # The importer warns about each renamed input (their names are kept, see `spec`) and prints on errors.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), importer.closed_on_error():
        warnings.simplefilter("ignore")
        mod = importer.from_onnx(model.graph, opset)
    return with_names(mod, [value.name for value in model.graph.input], [value.name for value in model.graph.output])


class WeightsImporter(ONNXGraphImporter):
    """TVM's importer, for a model whose large weights are kept apart."""

    def __init__(self, weights: Weights, dtypes: str | dict[str, str]):
        super().__init__(shape_dict={}, dtype_dict=dtypes)
        self._weights = weights

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        return self._weights[tensor.name] if self._weights.hold(tensor) else super()._parse_array(tensor)


class _Importer(WeightsImporter):
    """Uses `CONVERTERS` before TVM's own, without a change to TVM's global table.

    Every result is bound to a variable named after its ONNX node, so that later messages can name it.
    """

    def __init__(self, weights: Weights, model_name: str):
        super().__init__(weights, dtypes={})
        self._model_name = model_name

    def _convert_operator(self, op_name, inputs, attrs, opset):
        label = attrs["tvm_custom"]["name"]
        self._refuse_unknown_lengths(inputs, op_name, label)
        convert, outputs = CONVERTERS.get(op_name), attrs["tvm_custom"]["num_outputs"]
        try:
            result = convert(Node(self.bb, op_name, inputs, attrs, opset, outputs)) if convert else None
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
            result = self._bind(result, label)
        except Exception as err:
            raise UserError(
                f"{self._model_name}: operator {op_name} (node {label}) cannot be imported, {_reason(err)}; "
                f"export the model in another way or simplify this node first."
            ) from err
        self._refuse_dynamic(result, op_name, label)
        return result

    def _check_for_unsupported_ops(self, graph):
        """Do nothing: TVM's check knows its own converters only; see `operators.refuse_unsupported`."""

    def _bind(self, result: relax.Expr, label: str) -> relax.Expr:
        result = self.bb.normalize(result)
        if not isinstance(result, relax.Call):
            return result
        return self.bb.emit(result, name_hint=re.sub(r"\W+", "_", label).strip("_"))

    def _refuse_unknown_lengths(self, inputs, op_name: str, label: str) -> None:
        for each in inputs:
            if isinstance(each, relax.Expr) and not all(map(_is_static, _tensor_types(each.ty))):
                raise UserError(
                    f"{self._model_name}: operator {op_name} (node {label}) reads a tensor whose length is known only "
                    f"at run time, and only a result of the model may be one; cut the model there."
                )

    def _refuse_dynamic(self, result: relax.Expr, op_name: str, label: str) -> None:
        if op_name not in _AS_LONG_AS_IT_TAKES and not all(map(_is_static, _tensor_types(result.ty))):
            raise UserError(
                f"{self._model_name}: the shape of what operator {op_name} (node {label}) computes depends "
                f"on run-time data, and only static shapes are supported; remove the node from the export."
            )

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Turn what TVM raises outside of nodes into a UserError; end the open block, or C++ warns of it."""
        try:
            yield
        except Exception as err:
            with contextlib.suppress(Exception):
                self.bb._end_block()
            if isinstance(err, UserError):
                raise
            raise UserError(f"{self._model_name}: TVM's importer refuses the graph: {_reason(err)}.") from err


def _tensor_types(ty: tvm.ir.Type) -> Iterator[relax.TensorType]:
    if isinstance(ty, relax.TensorType):
        yield ty
    elif isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _tensor_types(field)


def _is_static(ty: relax.TensorType) -> bool:
    dims = ty.shape if isinstance(ty.shape, relax.ShapeExpr) else [None]
    return all(isinstance(dim, tvm.tirx.IntImm) for dim in dims)


def _reason(err: Exception) -> str:
    """Return an error's text in one line, without a final full stop, cut where it quotes a whole program."""
    text = " ".join(str(err).replace(_METADATA_NOTE, "").split()).rstrip(".") or type(err).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."
