# SPDX-License-Identifier: Apache-2.0
"""Front end: an ONNX file or a torch ExportedProgram in, a Relax module with static shapes out.

The steps of `from_onnx`, one module each, in this order::

    onnx_file   read the file and its external data, fill a light model
    dimensions  give every input dimension a number; then onnx_file checks the graph
    operators   inline functions
    fold        turn shape arithmetic into constants (only where there is some)
    operators   name every operator that TVM cannot import
    importer    ONNX graph -> Relax
    spec        names, shapes and dtypes of inputs and outputs; check arrays against them
"""

from collections.abc import Mapping, Sequence
from os import PathLike

import onnx

from smartmem_tvm import _tvm  # noqa: F401  (a wrong TVM is named before anything of TVM is imported)
from smartmem_tvm.frontend import baseline, dimensions, fold, importer, onnx_file, operators
from smartmem_tvm.frontend.operators import unsupported_operators
from smartmem_tvm.frontend.spec import check_inputs, input_spec, output_names
from smartmem_tvm.frontend.torch_program import from_torch

__all__ = [
    "check_inputs",
    "from_onnx",
    "from_onnx_as_tvm",
    "from_torch",
    "input_spec",
    "load_onnx",
    "output_names",
    "unsupported_operators",
]

Source = str | PathLike | onnx.ModelProto
Shapes = Mapping[str, Sequence[int]] | None


def load_onnx(source: Source, shapes: Shapes = None) -> onnx.ModelProto:
    """Read an ONNX model and make it complete, checked, statically shaped and free of shape arithmetic.

    Parameters
    ----------
    source
        A file, or a model in memory (which is not changed).
    shapes
        Input name -> shape, for inputs with dimensions that the model leaves open. A named dimension
        (``dim_param``) given for one input holds for every input that uses the name.

    Returns
    -------
    onnx.ModelProto
        The model with all weights inside, a number for each input dimension, and its functions inlined (also
        ONNX's own, where TVM lacks the operator). Initializers that the file also lists as inputs (defaults
        that a caller could replace) are constants here.

    Raises
    ------
    UserError
        If the file is missing, truncated or not ONNX; if its external data is missing or outside its folder;
        if the graph is empty, broken or too new; if a dimension has no value; if `shapes` does not fit.
    """
    model = onnx_file.read(source)
    name = onnx_file.display_name(source)
    dimensions.bind(model, shapes or {}, name)
    onnx_file.check_tensors(model, name)
    weights = fold.lift_weights(model)
    onnx_file.check_graph(model, name)
    # Functions before folding: their bodies bring shape arithmetic of their own.
    model = fold.fold_shape_arithmetic(operators.inline_functions(model))
    fold.put_back(model, weights)
    return model


def from_onnx(source: Source, shapes: Shapes = None):
    """Convert an ONNX model to a Relax module.

    Parameters
    ----------
    source, shapes
        As in `load_onnx`.

    Returns
    -------
    tvm.IRModule
        Function ``main`` takes the model's inputs in their order and returns one tensor, or a tuple if the
        model has several outputs. Weights are Relax constants and each tensor has a static shape. The ONNX
        names are kept in the attributes ``input_names`` and ``output_names`` of ``main``.

    Raises
    ------
    UserError
        As `load_onnx`; if the model uses operators that TVM cannot import (all are named); if the shape of
        a tensor depends on run-time data.
    """
    name = onnx_file.display_name(source)
    model = load_onnx(source, shapes)
    operators.refuse_unsupported(model, name)
    return importer.import_graph(model, name)


def from_onnx_as_tvm(source: Source, shapes: Shapes = None):
    """Convert an ONNX model with TVM's own importer, as someone without this package would.

    Parameters
    ----------
    source, shapes
        As in `load_onnx`.

    Returns
    -------
    tvm.IRModule
        What TVM's importer makes of the file; where it refuses the file, what `from_onnx` makes of it.
    """
    model = onnx_file.read(source)
    dimensions.bind(model, shapes or {}, onnx_file.display_name(source))
    return baseline.import_as_tvm(model) or from_onnx(source, shapes)
