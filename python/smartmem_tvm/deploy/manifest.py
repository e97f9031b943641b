# SPDX-License-Identifier: Apache-2.0
"""The manifest of a compiled model's folder: its fields, what they say of functions, and whether it fits here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .. import json_data
from .._version import TVM_PINS, installed_version
from ..errors import UserError
from .compilers import LIBRARY, OBJECTS

if TYPE_CHECKING:
    from .arguments import Parameter
    from .caches import CachePlan
    from .outputs import Output

FORMAT = 9
_READ = (5, 6, 7, 8, FORMAT)
"""Formats that are read: one of format 5 is of one size, one of format 6 has no caches, one of format 7 no open
dimension, and one of format 8 no memory budget for several sizes; otherwise they are the same."""
WEIGHTS, MANIFEST, EXPLANATION = "weights.bin", "manifest.json", "explain.json"
PLAN = "stream.plan"
"""The file with the plan within a memory budget, as ``native/stream/plan_file.h`` describes it."""


def _is_target(text: object) -> bool:
    import tvm

    try:
        return isinstance(text, str) and isinstance(tvm.target.Target(text), tvm.target.Target)
    except Exception:  # TVM raises several kinds here
        return False


_INPUT = {"name": str, "shape": [json_data.is_size], "dtype": str, "ids_below?": (json_data.is_size, None)}
_WEIGHT = {"offset": json_data.is_size, "shape": [json_data.is_size], "dtype": str, "scope": str}
_STEP = {"kernel": str, "flops": (int, float)}
_TENSOR = {"bytes": json_data.is_size, "first": json_data.is_size, "last": json_data.is_size}
_CACHE = {"input": str, "output": str, "axis": json_data.is_size, "sequences?": json_data.is_count, "circular?": bool}
_PLACE = {"axis": json_data.is_size, "each": json_data.is_size, "more?": int, "step?": json_data.is_count}
_SHARE = (_PLACE, [_PLACE], None)
_TILE = {"function": str, "items": json_data.is_size, "cost": json_data.is_size}
_RANGE = {"least": json_data.is_size, "most": json_data.is_size, "inputs": [_SHARE], "outputs": [_SHARE]}
_OPEN = {**_RANGE, "tiles": [_TILE], "length?": bool, "around?": _RANGE}
_USE = {"weight": json_data.is_size, "bytes": json_data.is_size, "step": json_data.is_size}
_STREAM = {"budget": json_data.is_size, "steps": [_STEP], "tensors": [_TENSOR], "uses": [_USE]}
_SIZE = {
    "function": str,
    "inputs": [_INPUT],
    "outputs": [str],
    "own_outputs": [bool],
    "caches?": [_CACHE],
    "stream?": _STREAM,
}
# The fields that readers of a manifest need.
_SHAPE = {
    "target": _is_target,
    "host": str,
    "library": lambda name: name in (LIBRARY, OBJECTS),
    "inputs": [_INPUT],
    "outputs": [str],
    "own_outputs?": [bool],
    "caches?": [_CACHE],
    "sizes?": [_SIZE],
    "open?": [_OPEN],
    "weights": [_WEIGHT],
    "sha256": dict,
    "stream?": _STREAM,
    "model?": str,
    "values?": dict,
    "rows?": json_data.is_count,
    "precision?": str,
}


def input_spec(inputs: list[dict]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return inputs as the manifest lists them by name, as (shape, dtype)."""
    return {each["name"]: (tuple(each["shape"]), each["dtype"]) for each in inputs}


def parameters_of(described: Mapping) -> list[Parameter]:
    """Return the inputs that the manifest lists of a function."""
    from .arguments import parameter_of_file

    return [parameter_of_file(each["name"], each["shape"], each["dtype"]) for each in described["inputs"]]


def functions_of(manifest: Mapping) -> dict[str, Mapping]:
    """Return what the manifest says of each function, by its name."""
    return {each["function"]: each for each in manifest.get("sizes", ())} or {"main": manifest}


def streams_of(manifest: Mapping) -> dict[str, Mapping]:
    """Return what the stream of each function needs; nothing without a memory budget."""
    return {name: each["stream"] for name, each in functions_of(manifest).items() if "stream" in each}


def cache_plan(manifest: Mapping) -> CachePlan:
    """Return the caches of a folder's model, by its manifest."""
    from ..ir.cache_rows import Cache
    from ..target import is_gpu, parse_target
    from .caches import CachePlan

    caches = {}
    for name, each in functions_of(manifest).items():
        inputs = {param["name"]: (number, len(param["shape"])) for number, param in enumerate(each["inputs"])}
        caches[name] = []
        for pair in each.get("caches", ()):
            number, rank = inputs.get(pair["input"], (0, 0))
            if pair["axis"] >= rank or pair["output"] not in each["outputs"]:
                raise UserError(f"The {MANIFEST} names caches that are no inputs or outputs: compile the model again.")
            output = each["outputs"].index(pair["output"])
            more = pair.get("sequences", 1), pair.get("circular", False)
            caches[name].append(Cache(number, output, pair["input"], pair["axis"], *more))
    params = {name: parameters_of(each) for name, each in functions_of(manifest).items()}
    return CachePlan.of(caches, params, last=is_gpu(parse_target(manifest["target"])))


def outputs_of(described: Mapping) -> list[Output]:
    """Return the outputs that the manifest lists of a function."""
    from .outputs import Output

    names = described["outputs"]
    own = described.get("own_outputs", [False] * len(names))
    return [Output(*each) for each in zip(names, own, strict=False)]


def check_files(folder: Path, manifest: Mapping) -> None:
    """Raise a `UserError` if a file is missing, or its checksum is not the manifest's."""
    for file in (folder / manifest["library"], folder / WEIGHTS, folder / EXPLANATION):
        if not file.is_file() or checksum(file) != manifest["sha256"].get(file.name):
            raise UserError(f"{file} is missing or not the one that was compiled; compile the model again.")


def read_manifest(folder: Path, elsewhere: bool = False, several: bool = False) -> dict:
    """Return the manifest of a model that this installation can run, on this CPU or on a device `elsewhere`.

    Parameters
    ----------
    several : bool
        Whether the caller knows models of several sizes and of caches; they are refused otherwise.
    """
    from ..target import host_target

    manifest = manifest_in(folder)
    if manifest is None:
        raise UserError(f"{folder} holds no compiled model; make one with `smartmem compile MODEL -o {folder}`.")
    here = {"format": FORMAT, **{name: installed_version(name) for name in TVM_PINS}}
    if manifest["format"] in _READ:
        del here["format"]
    if manifest.get("cpu") and not elsewhere:  # code for no CPU in particular runs on all of them
        here["cpu"] = str(host_target().attrs["mcpu"])
    if manifest.get("host") and not elsewhere:
        raise UserError(
            f"{folder} was compiled for the CPU {manifest['host']}, which this machine is not: run it there with "
            f"`smartmem measure {folder} --tracker HOST:PORT --key KEY`."
        )
    for key, value in here.items():
        if manifest.get(key) != value:
            found = manifest.get(key)
            raise UserError(f"{folder} was compiled for {key} {found}, here it is {value}; compile the model again.")
    if not json_data.fits(manifest, _SHAPE):
        raise UserError(f"{folder / MANIFEST} is not the one that was written; compile the model again.")
    if not several:
        require_one_size(folder, manifest)
        require_no_caches(folder, manifest)
    return manifest


def sizes_in(folder: Path) -> list:
    """Return the sizes of a folder's model if it has several, without any check."""
    found = (manifest_in(folder) or {}).get("sizes")
    return found if isinstance(found, list) else []


def require_one_size(folder: str | Path, manifest: Mapping) -> None:
    """Refuse a model of several sizes.

    Raises
    ------
    UserError
    """
    if sizes := manifest.get("sizes"):
        inputs = [f"{each['name']}:{','.join(map(str, each['shape']))}" for each in sizes[0]["inputs"]]
        raise UserError(
            f"{folder} holds {len(sizes)} sizes of a model, and this command takes a folder of one: compile the model "
            f"for one size, as with --shape {' --shape '.join(inputs)}."
        )


def require_no_caches(folder: str | Path, manifest: Mapping) -> None:
    """Refuse a model that keeps caches between its inferences.

    Raises
    ------
    UserError
    """
    if manifest.get("caches"):
        raise UserError(
            f"{folder} keeps caches between inferences, which this command does not know: compile the model without "
            f"--cache for it."
        )


def require_whole_weights(folder: Path, manifest: Mapping) -> None:
    """Refuse a model with a memory budget where all weights are sent at once.

    Raises
    ------
    UserError
    """
    if "stream" in manifest:
        raise UserError(
            f"{folder} was compiled with a memory budget: it reads its weights from a file of the machine that it runs "
            f"on, and over RPC there is none; compile it without --memory-budget, or run it on the device by itself "
            f"(docs/memory_budget.md)."
        )


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def manifest_in(folder: Path) -> dict | None:
    """Return the manifest of a folder, or None if there is none of this package."""
    try:
        content = json_data.read(folder / MANIFEST)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "format" in content else None
