# SPDX-License-Identifier: Apache-2.0
"""Light ONNX files: the real graph of a network without the bytes of its weights.

A light file is an ordinary ONNX file in which the big float initializers keep their name, type and
shape but have no data. The model's metadata property ``smartmem.weights`` holds, as JSON, one
:class:`Recipe` per such tensor; :func:`fill` draws the values from it. Everything else (attention
masks, position indices, shape tensors, small constants) is stored as in any ONNX file.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto

from .errors import UserError
from .json_data import parse

KEY = "smartmem.weights"
DTYPES = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.FLOAT16: np.dtype("<f2"),
    TensorProto.DOUBLE: np.dtype("<f8"),
}
MAX_BYTES = 2**31 - 1  # protobuf's limit for a serialized message
# Far below the overflow of float32, so that no drawn number is infinite or NaN.
MAX_NUMBER = 1e30
DRAWS = 4


@dataclass(frozen=True)
class Recipe:
    """The distribution of one tensor's values: a bell curve, cut off at both ends.

    Attributes
    ----------
    mean, std : float
        Mean and standard deviation before the cut; ``std`` is not negative.
    min, max : float
        Every value lies in ``[min, max]``.
    seed : int
        Seed of the tensor's own random stream, 0 <= seed < 2**32.
    """

    mean: float
    std: float
    min: float
    max: float
    seed: int

    @classmethod
    def of(cls, values: np.ndarray, name: str) -> Recipe:
        """Return the recipe with the statistics of `values` and a seed made from `name`."""
        exact = np.asarray(values, dtype=np.float64)
        mean, std, low, high = (float(f"{f(exact):.5g}") for f in (np.mean, np.std, np.min, np.max))
        return cls(mean, std, low, high, zlib.crc32(name.encode()))

    def draw(self, shape: tuple[int, ...], out: np.ndarray | None = None) -> np.ndarray:
        """Return float32 values of the given shape, the same on every machine; in `out` if given.

        A sum of four uniform numbers (Irwin-Hall) approximates the normal distribution. It needs only exact integer
        steps and IEEE additions, whereas numpy's normal numbers use the C library's ``exp`` and ``log``, whose last bit
        differs between machines.
        """
        stream = np.random.Generator(np.random.PCG64(self.seed))
        total = np.empty(math.prod(shape), np.float32) if out is None else out.reshape(-1)
        stream.random(dtype=np.float32, out=total)
        part = np.empty_like(total)
        for _ in range(DRAWS - 1):
            stream.random(dtype=np.float32, out=part)
            total += part
        total -= np.float32(DRAWS / 2)
        total *= np.float32(self.std * math.sqrt(12 / DRAWS))
        total += np.float32(self.mean)
        return total.clip(np.float32(self.min), np.float32(self.max), out=total).reshape(shape)


def is_light(model: ModelProto) -> bool:
    """Return True if `model` carries recipes, that is, if it must be filled before use."""
    return any(entry.key == KEY for entry in model.metadata_props)


def strip(model: ModelProto, recipes: Mapping[str, Recipe]) -> ModelProto:
    """Return a light copy of `model`: the tensors named in `recipes` lose their data.

    Parameters
    ----------
    model : onnx.ModelProto
        A complete model, not changed.
    recipes : mapping from str to Recipe
        One entry for each initializer to empty.

    Returns
    -------
    onnx.ModelProto
        The light model; node for node the graph of `model`.

    Raises
    ------
    UserError
        If `model` is light already, or a name is not that of a float initializer.
    """
    if is_light(model):
        raise UserError("This model is a light file already; strip the exported model it was made from.")
    _check_floats(model, recipes)
    light = without_data(model, recipes.keys())
    table = {name: asdict(recipes[name]) for name in sorted(recipes)}
    light.metadata_props.add(key=KEY, value=json.dumps(table, separators=(",", ":")))
    return light


def without_data(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Return a copy of `model` in which these initializers have a name, a type and a shape, but no data."""
    bare = ModelProto()
    _copy_fields(model, bare, "graph")
    _copy_fields(model.graph, bare.graph, "initializer")
    for tensor in model.graph.initializer:
        if tensor.name in names:
            bare.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        else:
            bare.graph.initializer.append(tensor)
    return bare


def _copy_fields(source: Message, target: Message, left_out: str) -> None:
    """Copy all fields except one; copying the weights and then dropping them would take twice the memory."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "MergeFrom"):  # a message or a list
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)


def fill(model: ModelProto) -> ModelProto:
    """Return a complete copy of a light model, its weights drawn from their recipes.

    Parameters
    ----------
    model : onnx.ModelProto
        A light model, not changed. A model that is not light is returned as it is.

    Returns
    -------
    onnx.ModelProto
        The same graph with data in every initializer and without the recipes. Two calls, on any two
        machines with one version of numpy, give the same bytes.

    Raises
    ------
    UserError
        As `read_recipes`, or if the weights would not fit in 2 GiB.
    """
    if not is_light(model):
        return model
    recipes = read_recipes(model)
    total = sum(size_in_bytes(tensor) for tensor in model.graph.initializer if tensor.name in recipes)
    if total > MAX_BYTES:
        raise UserError(
            f"The weights of this light model would take {total} bytes and an ONNX model holds less than "
            "2 GiB; give the light file itself to smartmem, which draws them one by one."
        )
    full = ModelProto()
    full.CopyFrom(model)
    for tensor in full.graph.initializer:
        if tensor.name in recipes:
            values = recipes[tensor.name].draw(tuple(tensor.dims))
            tensor.raw_data = values.astype(DTYPES[tensor.data_type], copy=False).tobytes()
    drop_recipes(full)
    return full


def size_in_bytes(tensor: TensorProto) -> int:
    """Return the size of a float tensor's values."""
    return math.prod(tensor.dims) * DTYPES[tensor.data_type].itemsize


def drop_recipes(model: ModelProto) -> None:
    """Remove the recipes from a model, in place."""
    rest = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(rest)


def read_recipes(model: ModelProto) -> dict[str, Recipe]:
    """Return the recipe of each initializer of a light model that has no data.

    Raises
    ------
    UserError
        If the recipes are not the JSON that :func:`strip` writes, a recipe names no float initializer, or
        an initializer has neither data nor recipe.
    """
    recipes = _recipes(model)
    _check_floats(model, recipes)
    _check_complete(model, recipes)
    return recipes


def _recipes(model: ModelProto) -> dict[str, Recipe]:
    text = next(entry.value for entry in model.metadata_props if entry.key == KEY)
    try:
        return {name: _recipe(name, entry) for name, entry in parse(text).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(
            f"The weight recipes of this light model are not valid JSON ({error}); get the file again."
        ) from error


def _recipe(name: str, entry: object) -> Recipe:
    """Read one entry: a number for each field, within its bounds (NaN is within none)."""
    keys = [field.name for field in fields(Recipe)]
    if isinstance(entry, dict) and sorted(entry) == sorted(keys):
        numbers = [entry[key] for key in keys]
        if all(type(n) in (int, float) and abs(n) <= MAX_NUMBER for n in numbers):
            recipe = Recipe(**entry)
            valid_seed = type(recipe.seed) is int and 0 <= recipe.seed < 2**32
            if recipe.std >= 0 and recipe.min <= recipe.max and valid_seed:
                return recipe
    raise UserError(
        f"The weight recipe of initializer '{name}' must give numbers {', '.join(keys)} with std >= 0, "
        "min <= max and 0 <= seed < 2**32; get the light file again or make it with scripts/export_models.py."
    )


def _check_floats(model: ModelProto, recipes: Mapping[str, Recipe]) -> None:
    """Refuse a recipe that is not for a float initializer."""
    tensors: dict[str, list[TensorProto]] = {}
    for tensor in model.graph.initializer:
        tensors.setdefault(tensor.name, []).append(tensor)
    for name in recipes:
        found = tensors.get(name, ())
        if len(found) != 1 or found[0].data_type not in DTYPES or any(dim < 0 for dim in found[0].dims):
            raise UserError(
                f"The weight recipe of '{name}' fits no float initializer of this model; "
                "make the light file again with scripts/export_models.py."
            )


def _check_complete(model: ModelProto, recipes: Mapping[str, Recipe]) -> None:
    """Refuse a model in which some initializer has neither data nor recipe."""
    for tensor in model.graph.initializer:
        empty = math.prod(tensor.dims) > 0 and not has_data(tensor)
        if empty and tensor.name not in recipes:
            raise UserError(
                f"Initializer '{tensor.name}' has no data and no weight recipe in '{KEY}'; "
                "make the light file again with scripts/export_models.py."
            )


def has_data(tensor: TensorProto) -> bool:
    """Return True if any of the fields that hold values is set, or the data are in another file."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.raw_data:
        return True
    return holds_lists(tensor)


def holds_lists(tensor: TensorProto) -> bool:
    """Return True if the values are in a field of their type and not in the raw bytes."""
    lists = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    return any(len(getattr(tensor, field)) for field in lists)
