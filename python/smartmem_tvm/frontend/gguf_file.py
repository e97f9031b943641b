# SPDX-License-Identifier: Apache-2.0
"""Read GGUF files of networks like Llama: what they say of the network, and their weights.

`gguf_network` writes the network as ONNX nodes, whose weights are unpacked (`gguf_codes`) when they are read.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smartmem_tvm.errors import UserError, shape_text

if TYPE_CHECKING:
    from smartmem_tvm.frontend.onnx_file import Model

ENDING, _MAGIC = ".gguf", b"GGUF"
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Values of ``general.architecture`` that are known."""
PAIRED = frozenset(("llama",))
"""Architectures whose files have the rows of queries and keys in the order that turns numbers 2 i and 2 i + 1 together;
the others turn i and i + half."""
MOST_ROWS = 2048
"""Rows of the caches where no shape says another number and the network was made for as many. Chosen: a file states
131,072 and more, of which caches alone would take gigabytes."""
# Keys behind the architecture's name that are understood, or that change no result here.
_KNOWN = """
    block_count context_length embedding_length feed_forward_length vocab_size tensor_data_layout
    attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base rope.scaling.type rope.scaling.factor
    rope.scaling.original_context_length rope.scaling.finetuned
"""
_AGAIN = "convert or copy it again"


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network, by the names of its file.

    Attributes
    ----------
    layers, width, inner, heads, key_heads : int
        Layers, numbers of a token, numbers between the products of a gated layer, heads of queries, and of keys.
    head, value : int
        Numbers of a head of queries and keys, and of one of values.
    context : int
        Tokens that the network was made for.
    epsilon : float
        Of the norms.
    base, slower : float
        Base of the angles of positions, and what they are divided by.
    """

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int
    value: int
    context: int
    epsilon: float
    base: float
    slower: float


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file.

    Attributes
    ----------
    name, kind : str
        Its name, and that of its format.
    shape : tuple of int
        The numbers of a row last.
    data : array
        Floats, or the bytes of its blocks, mapped into memory.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray

    def floats(self) -> np.ndarray:
        """Return its numbers in float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        return dequantize(self.data, GGMLQuantizationType[self.kind]).astype("float32", copy=False).reshape(self.shape)

    def blocks(self) -> np.ndarray:
        """Return its blocks as (blocks, bytes)."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        return (
            np.ascontiguousarray(self.data)
            .view("uint8")
            .reshape(-1, GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]][1])
        )


@dataclass(frozen=True)
class File:
    """The network of a file: its architecture, its sizes, and its tensors by name."""

    name: str
    architecture: str
    sizes: Sizes
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor after a check of its shape, of which None is any number.

        Raises
        ------
        UserError
            If there is none, or it has another shape.
        """
        found = self.tensors.get(name)
        if found is None:
            raise UserError(f"{self.name} has no tensor '{name}', which each {self.architecture} has; {_AGAIN}.")
        same = len(shape) == len(found.shape) and all(b in (None, a) for a, b in zip(found.shape, shape))
        if not same:
            wanted = shape_text("?" if each is None else each for each in shape)
            raise UserError(
                f"{self.name}: tensor '{name}' has {shape_text(found.shape)} numbers, and by the sizes that "
                f"the file states it has {wanted}; {_AGAIN}."
            )
        return found


def is_gguf(source: object) -> bool:
    """Whether a model is a GGUF file, by its ending or its first bytes."""
    if not isinstance(source, str | PathLike):
        return False
    if Path(source).suffix.lower() == ENDING:
        return True
    try:
        with Path(source).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read(path: Path) -> Model:
    """Return the network of a file, with its number of tokens and of rows of the caches open.

    Raises
    ------
    UserError
        If the package `gguf` is missing; if the file is missing, truncated or damaged; if its architecture, one of its
        settings, or the format of a tensor is not known; if it has a tensor that the network does not use.
    """
    from smartmem_tvm.frontend.gguf_network import model_of

    return model_of(_file(path))


def _file(path: Path) -> File:
    if path.is_dir() or not path.exists():
        raise UserError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give a GGUF file.")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f'{path}: GGUF files need gguf: run `pip install "smartmem-tvm[gguf]"`.')
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        tensors = {
            str(each.name): Tensor(
                str(each.name), each.tensor_type.name, tuple(int(size) for size in reversed(each.shape)), each.data
            )
            for each in reader.tensors
        }
    except OSError as err:
        raise UserError(f"{path} cannot be read ({err.strerror}); check its permissions.") from err
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as err:
        raise UserError(f"{path} is truncated or no GGUF file ({_line(err)}); {_AGAIN}.") from err
    if reader.byte_order != "I":
        raise UserError(f"{path} is in the byte order of other machines; convert it to the order of this one.")
    architecture = str(fields.get("general.architecture", ""))
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"{path} holds the architecture '{architecture}', and {', '.join(ARCHITECTURES)} are known; export the "
            f"network as ONNX."
        )
    sizes = _sizes(str(path), architecture, fields)
    _refuse_formats(str(path), tensors)
    return File(str(path), architecture, sizes, tensors)


def _line(err: Exception) -> str:
    return " ".join(str(err).split()).rstrip(".") or type(err).__name__


def _sizes(name: str, architecture: str, fields: Mapping[str, Any]) -> Sizes:
    """Return the sizes that a file states, after a check that all that it states is understood."""
    own = {key.removeprefix(f"{architecture}."): value for key, value in fields.items() if key.startswith(architecture)}
    for key in own.keys() - set(_KNOWN.split()):
        if own[key]:
            raise UserError(
                f"{name} sets {architecture}.{key} to {own[key]}, which is not known here; export the network as ONNX."
            )

    def number(key: str, usual: float | None = None) -> Any:
        value = own.get(key, usual)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            said = "is missing" if value is None else f"is {value}, no number above 0 for all layers"
            raise UserError(f"{name}: its {architecture}.{key} {said}; {_AGAIN}.")
        return value

    width, heads = number("embedding_length"), number("attention.head_count")
    head = number("attention.key_length", width // heads)
    scaling = own.get("rope.scaling.type", "none")
    if scaling not in ("none", "linear") or number("rope.dimension_count", head) != head:
        what = f"scaling '{scaling}'" if scaling not in ("none", "linear") else "a part of each head"
        raise UserError(
            f"{name} turns its heads by position with {what}, and whole heads without scaling or with a linear one are "
            f"known; export the network as ONNX."
        )
    return Sizes(
        layers=number("block_count"),
        width=width,
        inner=number("feed_forward_length"),
        heads=heads,
        key_heads=number("attention.head_count_kv", heads),
        head=head,
        value=number("attention.value_length", head),
        context=number("context_length"),
        epsilon=number("attention.layer_norm_rms_epsilon"),
        base=number("rope.freq_base", 10000.0),
        slower=number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
    )


def _refuse_formats(name: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse formats that neither this package nor `gguf` unpacks, before anything is read."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    for kind, tensor in {each.kind: each for each in tensors.values() if prod(each.shape)}.items():
        row = np.ascontiguousarray(tensor.data.reshape(-1, tensor.data.shape[-1])[:1])
        try:
            dequantize(row, GGMLQuantizationType[kind])
        except NotImplementedError as err:
            raise UserError(
                f"{name}: tensor '{tensor.name}' has the format {kind}, which package gguf does not unpack; quantize "
                f"the file to Q4_0, Q8_0, Q4_K or Q6_K."
            ) from err
