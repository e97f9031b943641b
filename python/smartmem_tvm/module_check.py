# SPDX-License-Identifier: Apache-2.0
"""Check that TVM's JSON holds a module: TVM's own reader accepts more than modules, and its passes crash on it.

TVM's reader accepts objects of any type, even types that run code at construction; circular references; chains of
references deeper than any stack; and null in the place of required objects.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from functools import cache

import tvm
from tvm_ffi import core

from . import json_data
from .errors import UserError

MOST_DEPTH = 1000  # depth of nested references; the networks of the suite have 40
# The types of a module. A function of the process, or a library, is no part of a module.
_DATA = re.compile(
    r"None|bool|int|float|DataType|dtype|Device|ffi\.(String|SmallStr|Array|List|Map|Dict|Shape|Tensor)"
    r"|(ir|prim|relax|tirx|s_tir|target)\..*"
)
# Header of a tensor: magic, reserved, device, device index, rank; type code, bits and lanes of its numbers.
_HEADER = struct.Struct("<QQiiiBBH")
_LISTS, _MAPS = ("ffi.Array", "ffi.List"), ("ffi.Map", "ffi.Dict")
# Types of fields whose values are in the JSON directly, and not numbers of nodes.
_INLINE = ("bool", "int", "float", "DataType", "dtype", "Device")
_STRINGS = ("ffi.String", "std::string", "str")  # either the text itself, or the number of a node
# Types of fields that may be null.
_NULLABLE = ("Optional", "Any", "Union", "ir.Span", "ir.Attrs", "ir.DictAttrs", "ffi.Object")
_NEEDED = (("ir.GenericConst", "Any"),)  # a constant must have a value


def check_module_json(text: str | bytes) -> None:
    """Refuse a text that is no module of this TVM.

    Raises
    ------
    UserError
        If it holds something else; the message is meant to follow the name of a file.
    ValueError
        If it is no JSON, or not TVM's.
    """
    graph = json_data.parse(text)
    if not json_data.fits(graph, {"metadata": {"tvm_version": str}, "nodes": [{"type": str}], "root_index": int}):
        raise ValueError("it is no graph of TVM's")
    version, nodes = graph["metadata"]["tvm_version"], graph["nodes"]
    if version != tvm.__version__:
        raise UserError(f"was written by TVM {version}, and this is {tvm.__version__}: dump the module again.")
    if not 0 <= graph["root_index"] < len(nodes):
        raise ValueError("its root is missing")
    root = nodes[graph["root_index"]]["type"]
    if root != "ir.IRModule":
        raise UserError(f"holds a {root}, which is not a module; give a file that `--dump-dir` wrote.")
    strange = next((node["type"] for node in nodes if not _DATA.fullmatch(node["type"])), None)
    if strange is not None:
        raise UserError(f"holds a {strange}, which is no part of a module; give a file that `--dump-dir` wrote.")
    for node in nodes:
        if node["type"] == "ffi.Tensor" and not _is_tensor(node.get("data")):
            raise ValueError("it has a damaged tensor")
    _check_references(nodes)


def _is_tensor(text: object) -> bool:
    """Whether a tensor's data has the size of its shape: TVM would read beyond shorter data."""
    try:
        data = base64.b64decode(text, validate=True)
        _, _, device, index, rank, _, bits, lanes = _HEADER.unpack_from(data)
        *shape, size = struct.unpack_from(f"<{rank + 1}q", data, _HEADER.size) if 0 <= rank <= MOST_DEPTH else (-1,)
    except (TypeError, ValueError, struct.error):
        return False
    whole = min(shape, default=0) >= 0 and size == (math.prod(shape) * bits * lanes + 7) // 8
    return whole and (device, index) == (1, 0) and len(data) == _HEADER.size + 8 * (rank + 1) + size


def _check_references(nodes: list[dict]) -> None:
    """Check references: each to an earlier node, none nested too deeply, and none to null unless its type allows it."""
    depths: list[int] = []
    for number, node in enumerate(nodes):
        depth = 0
        for other, schema in _references(node):
            if not isinstance(other, int) or isinstance(other, bool) or not 0 <= other < number:
                raise ValueError(f"node {number} refers to node {other}")
            _check_there(nodes, other, schema, node["type"])
            depth = max(depth, depths[other] + 1)
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
        depths.append(depth)


def _references(node: dict) -> Iterator[tuple[object, dict | None]]:
    """Yield the nodes that a node refers to, each with its required type if known."""
    data = node.get("data")
    if node["type"] in _LISTS + _MAPS:
        yield from ((each, None) for each in (data if isinstance(data, list) else [data]))
    elif isinstance(data, dict):
        fields = _fields(node["type"])
        known = ((each, fields[name]) for name, each in data.items() if name in fields)
        yield from (pair for pair in known if pair[1]["type"] not in _STRINGS or not isinstance(pair[0], str))


def _check_there(nodes: list[dict], number: int, schema: dict | None, holder: str) -> None:
    """Refuse null in the place of a required object, also within lists and maps."""
    if schema is None or (schema["type"] in _NULLABLE and (holder, schema["type"]) not in _NEEDED):
        return
    node, parts = nodes[number], schema.get("args", [])
    if schema["type"] in _STRINGS and node["type"] not in ("ffi.String", "ffi.SmallStr"):
        raise ValueError(f"a {holder} has a {node['type']} in the place of a text")
    if node["type"] == "None":
        raise ValueError(f"a {holder} lacks a {schema['type']}")
    if node["type"] in _LISTS + _MAPS and isinstance(node.get("data"), list) and parts:
        for place, each in enumerate(node["data"]):
            _check_there(nodes, each, parts[place % len(parts)], holder)


@cache
def _fields(key: str) -> dict[str, dict]:
    """Return field -> TVM's type schema, for the fields of a type that are references."""
    try:
        info = core._lookup_or_register_type_info_from_type_key(key)
    except Exception as error:  # TVM raises several kinds here
        raise ValueError(f"TVM knows no type {key}") from error
    found: dict[str, dict] = {}
    while info is not None:
        texts = {each.name: (each.metadata or {}).get("type_schema", "null") for each in info.fields or ()}
        described = {name: json.loads(text) for name, text in texts.items()}
        found.update({name: schema for name, schema in described.items() if schema and schema["type"] not in _INLINE})
        info = info.parent_type_info
    return found
