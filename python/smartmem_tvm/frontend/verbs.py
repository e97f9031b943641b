# SPDX-License-Identifier: Apache-2.0
"""The functions of the front end: read a model, and convert it to a Relax module with static shapes.

The steps of `from_onnx`, one module each, in this order::

    torch_file  read a program of torch: `torch_onnx` converts it to ONNX, `torch_sizes` checks its bounds, and
                `torch_inference` checks that it is inference
    gguf_file   read a GGUF file; `gguf_network` writes it as ONNX nodes, with the weights of `gguf_codes`
    onnx_file   read the file: the graph at once, its large weights (`weights`) when they are used
    fixed_inputs  inputs with a fixed value become constants
    growing_caches  give caches that grow a capacity: `capacity` rewrites the graph by `sampled_sizes`
    dimensions  give every input dimension a number; then onnx_file checks the graph
    prepare     the next three, with ONNX's libraries, in the process of `in_child_process` (`helper`, `forked`)
    functions   inline functions
    fold        turn shape arithmetic into constants (only where there is some)
    control_flow  unroll loops, take branches, resolve sequences (`sequences`); `flatten` drives both
    operators   name every operator that TVM cannot import
    importer    ONNX graph -> Relax
    spec        names, shapes and dtypes of inputs and outputs; check arrays against them
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

import onnx
from numpy.typing import ArrayLike

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import (
    baseline,
    control_flow,
    dimensions,
    fixed_inputs,
    fold,
    gguf_file,
    growing_caches,
    importer,
    onnx_file,
    open_dimension,
    operators,
    several_sizes,
    torch_file,
)
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.batch import rebatch
from smartmem_tvm.frontend.child_process import at_most, model_in_child_process
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.prepare import changed
from smartmem_tvm.frontend.torch_sizes import check_sizes
from smartmem_tvm.tvm_lock import one_at_a_time

Source = str | PathLike | onnx.ModelProto
Shapes = Mapping[str, Sequence[int]] | None
Values = Mapping[str, ArrayLike] | None


@one_at_a_time
def read_model(
    source: Source,
    shapes: Shapes = None,
    batch: int | None = None,
    values: Values = None,
    rows: int | None = None,
) -> Model:
    """Read a model once for all its readers: the importers, ONNX Runtime, inspection of the graph.

    Parameters
    ----------
    source
        An ONNX file, a model in memory (which is not changed), or a ``.pt2`` file of ``torch.export.save``, which
        torch's exporter turns into ONNX. torch unpickles the file, which can run any code: read only files from a
        trusted source. Or a GGUF file (`from_gguf`).
    shapes
        Input name -> shape, for inputs with dimensions that the model leaves open. A named dimension
        (``dim_param``) given for one input holds for every input that uses the name.
    batch : int, optional
        The first dimension of every input, which is open or 1 in the model; see `frontend.batch.rebatch`.
    values
        Input name -> numbers, for inputs with a fixed value: they become constants, and the model keeps only the
        branches that they select.
    rows : int, optional
        Rows of the caches of a language model that grow in the file (`frontend.growing_caches`).

    Returns
    -------
    Model
        The graph as it is in the file, but with a number for each input dimension; initializers that the file
        also lists as inputs (defaults that a caller could replace) are constants. Large weights are loaded when they
        are read, and kept as long as this object.

    Raises
    ------
    UserError
        If the file is missing, truncated or neither ONNX nor a program of torch; if its external data is missing or
        outside its folder; if the graph is empty or too new; if a dimension has no value; if `shapes`, `batch` or
        `values` does not fit; if the weights take more than this machine's memory.
    """
    model = _open(source, values)
    if batch is not None:
        if model.program is not None:
            raise UserError(
                f"{model.name}: a program of torch has the batch that it was exported with; export another."
            )
        rebatch(model.proto, batch, model.name)
    return bound(model, shapes, rows)


@one_at_a_time
def read_sizes(
    source: Source,
    sizes: Sequence[Mapping[str, Sequence[int]]] | Callable[[onnx.GraphProto], Sequence[Mapping[str, Sequence[int]]]],
    values: Values = None,
    rows: int | None = None,
) -> list[Model]:
    """Read a model once, and return it bound to each of several sizes, with one set of weights.

    Parameters
    ----------
    source, values, rows
        As in `read_model`.
    sizes
        The shapes of each size, as in `read_model`, at most `several_sizes.MOST_SIZES`; or a function that returns them
        for the model's graph, whose dimensions are open yet.

    Raises
    ------
    UserError
        As `read_model`, and if there are no sizes, or too many.
    """
    return several_sizes.bound_to_each(_open(source, values), sizes, partial(bound, rows=rows))


@one_at_a_time
def read_open(source: Source, shapes: open_dimension.Wanted, values: Values = None) -> open_dimension.Opened:
    """Read and import a model with a dimension that stays open.

    Parameters
    ----------
    source, values
        As in `read_model`.
    shapes
        As in `read_model`, with a range like ``1..64`` for a dimension, or for a batch and a length: a text, or a
        `open_dimension.Range`. Another dimension may have a list of sizes.

    Raises
    ------
    UserError
        As `read_model`, if more than two dimensions are open, or the model does something else with one than is known.
    """
    return open_dimension.opened(_open(source, values), shapes, bound, imported)


def _open(source: Source, values: Values) -> Model:
    """Read a model whose dimensions may be open."""
    reader = (
        torch_file.read if torch_file.is_of_torch(source) else gguf_file.read if gguf_file.is_gguf(source) else None
    )
    model = onnx_file.read(source) if reader is None else reader(Path(source))
    return _fixed(model, values) if values else model


def _fixed(model: Model, values: Mapping[str, ArrayLike]) -> Model:
    if model.program is not None:
        raise UserError(f"{model.name}: a program of torch has its values in it; export it with those of --value.")
    fixed = fixed_inputs.fix(model.proto, values, model.name)
    return replace(model, proto=control_flow.take_branches(model.proto, model.name), values=fixed)


def bound(model: Model, shapes: Shapes = None, rows: int | None = None) -> Model:
    """Give each input dimension of a model a number, in place, and check its tensors; see `read_model`."""
    if rows is not None:
        model, shapes = growing_caches.with_capacity(model, shapes or {}, rows)
    dimensions.bind(model.proto, shapes or {}, model.name, model.usual)
    if model.program is not None:
        check_sizes(model.program, model.inputs, model.name)
    onnx_file.check_tensors(model)
    return model


@one_at_a_time
def load_onnx(source: Source | Model, shapes: Shapes = None, values: Values = None) -> onnx.ModelProto:
    """Read an ONNX model and return it complete, checked, with static shapes and without shape arithmetic.

    Parameters
    ----------
    source, shapes, values
        As in `read_model`, or its result.

    Returns
    -------
    onnx.ModelProto
        The model with all weights inside, a number for each input dimension, and its functions inlined (also
        ONNX's own, where TVM lacks the operator).

    Raises
    ------
    UserError
        As `read_model`; if the graph is invalid; if the weights take 2 GiB or more, the limit of an ONNX model.
    """
    model = _read(source, shapes, values)
    onnx_file.refuse_more_than_protobuf(model)
    proto = _prepare(model)
    model.weights.fill(proto)
    return proto


def _read(source: Source | Model, shapes: Shapes, values: Values, rows: int | None = None) -> Model:
    return source if isinstance(source, Model) else read_model(source, shapes, values=values, rows=rows)


def _prepare(model: Model) -> onnx.ModelProto:
    """Return the checked and folded graph of a model, its large weights still outside."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    lifted = fold.lift_weights(proto, model.weights)
    onnx_file.check_graph(proto, model.name)
    if _is_to_change(proto):
        known, room = operators.known_operators(), model.weights.room
        proto = model_in_child_process(changed, proto, model.name, known, name=model.name, memory=room)
    fold.put_back(proto, lifted)
    return proto


def _is_to_change(proto: onnx.ModelProto) -> bool:
    nodes = list(walk.nodes(proto.graph))
    known = operators.known_operators()
    changing = any(each.op_type in control_flow.RESOLVED or not known(each) for each in nodes)
    return bool(changing or proto.functions or fold.known_nodes(proto))


@one_at_a_time
def from_onnx(
    source: Source | Model | Sequence[Model],
    shapes: Shapes | Sequence[Mapping[str, Sequence[int]]] = None,
    values: Values = None,
    rows: int | None = None,
):
    """Convert an ONNX model to a Relax module.

    Parameters
    ----------
    source, shapes, values
        As in `read_model`, or its result. With a list of shapes, one mapping for each size, the module has a function
        for each size (docs/shapes.md); so it has for the result of `read_sizes`. A dimension given as a text like
        ``1..64`` stays open, and the functions compute tiles of it, or positions up to a length.
    rows : int, optional
        As in `read_model` (docs/decoding.md).

    Returns
    -------
    tvm.IRModule
        Function ``main`` takes the model's inputs in their order and returns one tensor, or a tuple if the model has
        several outputs; of several sizes, each has such a function, ``main_0``, ``main_1``, ..., in their order.
        Weights are Relax constants and each tensor has a static shape. The ONNX names are kept in the attributes
        ``input_names`` and ``output_names`` of ``main``.

    Raises
    ------
    UserError
        As `read_model`; if the graph is invalid; if the model uses operators that TVM cannot import (all are
        named); if the shape of a tensor depends on run-time data.
    """
    if isinstance(source, list | tuple):
        return several_sizes.joined([imported(each) for each in source])
    if open_dimension.has_ranges(shapes) and not isinstance(source, Model):
        return read_open(source, shapes, values).module
    if shapes is not None and not isinstance(shapes, Mapping) and not isinstance(source, Model):
        return several_sizes.joined([imported(each) for each in read_sizes(source, shapes, values, rows)])
    return imported(_read(source, shapes, values, rows))


def imported(model: Model):
    """Return the module of a model whose dimensions are numbers."""
    proto = _prepare(model)
    operators.refuse_unsupported(proto, model.name)
    with at_most(model.weights.room):
        return importer.import_graph(proto, model.weights, model.name)


def from_gguf(path: str | PathLike, tokens: Sequence[int] = (1,), rows: int | None = None):
    """Convert a GGUF file of a network like Llama to a Relax module; its weights in codes stay so.

    Parameters
    ----------
    path
        A file whose architecture is llama, qwen2 or qwen3. Its tensors in Q4_0, Q8_0, Q4_K and Q6_K are kept as they
        are stored, others become float32. The package `gguf` is needed, ``pip install "smartmem-tvm[gguf]"``.
    tokens
        How many tokens a run takes: a function of the module for each number. ``(1, 128)`` reads prompts by 128.
    rows : int, optional
        Rows of the caches, the most tokens of a sequence; by default as many as the network was made for, at most
        2,048.

    Returns
    -------
    tvm.IRModule
        As of `from_onnx`, with the inputs ``input_ids`` and ``position_ids`` of (1, tokens) and caches of (1, heads,
        rows, numbers), and the outputs ``logits`` of (1, tokens, vocabulary) and the caches with new rows.
        `Options` with ``caches=True`` keeps the caches in the compiled model, for `Decoder`.

    Raises
    ------
    UserError
        If the file is missing, truncated or no GGUF file; if its architecture, a setting or a format is not known.
    """

    def sizes(graph: onnx.GraphProto) -> list[dict[str, tuple[int, ...]]]:
        caches = [each for each in graph.input if each.name.startswith("past_")] if rows is not None else []
        dims = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in caches}
        given = {name: (1, shape[1], rows, shape[3]) for name, shape in dims.items()}
        return [{**given, "input_ids": (1, each)} for each in tokens]

    return from_onnx(read_sizes(path, sizes))


@one_at_a_time
def from_onnx_as_tvm(source: Source | Model, shapes: Shapes = None, values: Values = None):
    """Convert an ONNX model with TVM's own importer, as without this package.

    Parameters
    ----------
    source, shapes, values
        As in `read_model`, or its result.

    Returns
    -------
    tvm.IRModule
        The result of TVM's importer, or of `from_onnx` if TVM refuses the file.
    """
    model = _read(source, shapes, values)
    return baseline.import_as_tvm(model) or from_onnx(model)
