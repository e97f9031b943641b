# SPDX-License-Identifier: Apache-2.0
"""Keep compiled graphs on disk, so that another process, or a later one, loads what one has compiled.

A program is one file of the folder (`deploy.binary_cache`): facts as JSON, and a library. Each weight is a file of its
own by the hash of its numbers, so that the sizes of a graph, and graphs of one model, have it once, in the folder and
in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import tvm

from .. import json_data
from ..deploy.binary_cache import BinaryCache, cache_of
from ..deploy.weights import Machine, Weight
from ..errors import UserError
from ..ir.sizes import STORABLE, number_bytes
from ..target import has_textures
from ..tensor_arrays import array_of
from . import at_capacity
from .at_capacity import AtCapacity

if TYPE_CHECKING:
    from tvm import relax

    from ..deploy.compiled import Compiled
    from ..deploy.streamed import StreamedMachine

FOLDER_VARIABLE = "SMARTMEM_TORCH_CACHE"
MEGABYTES = 4096  # MiB, the folder's largest size: programs of torch take their weights along, BERT-base 0.4 GB
_logger = logging.getLogger(__package__)
_PROGRAM, _REFUSED, _WEIGHT = "program", "not functional", "weight"
_WEIGHT_FACTS = {"sum": str, "shape": [json_data.is_size], "dtype": lambda name: name in STORABLE, "scope": str}
_FACTS = {"inputs": [json_data.is_size], "results": list, "copied": [bool], "weights": [_WEIGHT_FACTS]}
_FACTS["capacity?"] = at_capacity.FACTS
_shared: WeakValueDictionary[str, KeptWeight] = WeakValueDictionary()
_lock = Lock()


@dataclass(frozen=True)
class KeptWeight(Weight):
    """A weight with the hash of its numbers, shape, type and memory scope."""

    sum: str = ""


@dataclass(frozen=True)
class Ready:
    """A compiled program.

    Attributes
    ----------
    code : tvm.relax.VMExecutable or tvm.runtime.Module
        Its ``main`` takes the inputs and then the weights.
    weights : list of KeptWeight
        As of `shared`.
    inputs, results : tuple
        As of `program.Program`.
    copied : list of bool
        For each result that is a tensor, whether it shares memory, so that the caller gets a copy.
    streamed : Compiled, optional
        With a memory budget, what reads the weights from a file; it is not kept.
    at : AtCapacity, optional
        Of a program that takes several lengths, whose ``main`` has the length after the inputs.
    """

    code: relax.VMExecutable | tvm.runtime.Module
    weights: list[KeptWeight]
    inputs: tuple[int, ...]
    results: tuple
    copied: list[bool]
    streamed: Compiled | None = None
    at: AtCapacity | None = None

    def machine(self, target: tvm.target.Target, device: tvm.runtime.Device) -> Machine | StreamedMachine:
        """Return a new virtual machine on a device."""
        if self.streamed is not None:
            return self.streamed.machine(device)
        return Machine(self.code, self.weights, device, has_textures(target))


def kept_programs() -> BinaryCache:
    """Return the folder that the environment variables choose now.

    Raises
    ------
    UserError
        As `deploy.binary_cache.cache_of`.
    """
    names = FOLDER_VARIABLE, f"{FOLDER_VARIABLE}_MB", "XDG_CACHE_HOME", "HOME"
    return _chosen(tuple(map(os.environ.get, names)))


@cache
def _chosen(_variables: tuple) -> BinaryCache:
    """Return one object for the same values of the variables: it warns once if it cannot write."""
    return cache_of(FOLDER_VARIABLE, "torch", "compiled graphs of torch.compile", MEGABYTES)


def shared(weight: Weight) -> KeptWeight:
    """Return this process's one weight with the same numbers.

    That is a copy: TVM's importer leaves constants in torch's memory, which torch may write into.
    """
    content = _view(weight.tensor).tobytes()
    facts = f"{weight.tensor.dtype} {[*map(int, weight.tensor.shape)]} {weight.scope}\0"
    total = hashlib.sha256(facts.encode() + content).hexdigest()
    with _lock:
        known = _shared.get(total)
    return known or _held(total, content, weight.tensor.shape, weight.tensor.dtype, weight.scope)


def _held(total: str, content: bytes, shape: Sequence[int], dtype: str, scope: str) -> KeptWeight:
    """Return a weight with these bytes, and share it from now on."""
    tensor = tvm.runtime.empty(shape, dtype)
    _view(tensor)[:] = np.frombuffer(content, "uint8")
    with _lock:
        return _shared.setdefault(total, KeptWeight(tensor, scope, total))


def load(kept: BinaryCache, key: str) -> Ready | None:
    """Return what was stored for a key (`graph_key.with_inputs`), None if it is not there, or not whole."""
    content = kept.load(_PROGRAM, key)
    if content is None:
        return None
    size = int.from_bytes(content[:8], "little")
    try:
        facts = json_data.parse(content[8 : 8 + size])
    except ValueError:
        return None
    if not json_data.fits(facts, _FACTS):
        return None
    weights = [_weight(kept, each) for each in facts["weights"]]
    code = _library(content[8 + size :])
    if code is None or None in weights:
        return None
    results = tuple(map(_read_number, facts["results"]))
    at = AtCapacity(**facts["capacity"]) if "capacity" in facts else None
    return Ready(code, weights, tuple(facts["inputs"]), results, facts["copied"], at=at)


def store(kept: BinaryCache, key: str, compiled: Compiled, ready: Ready) -> Ready:
    """Link a compiled program and keep it; return it with the linked code, or as it is where that is not possible.

    Linked code is what other processes load: to run it here, too, saves generating the machine code a second time.
    """
    plain = all(isinstance(each, bool | int | float | None) for each in ready.results)
    library = _linked(compiled) if plain and kept.folder is not None else None
    code = library and _library(library)
    if not code:
        return ready
    weights = []
    for weight in ready.weights:
        shape = [*map(int, weight.tensor.shape)]
        weights.append({"sum": weight.sum, "shape": shape, "dtype": str(weight.tensor.dtype), "scope": weight.scope})
        if not kept.has(_WEIGHT, weight.sum):
            kept.store(_view(weight.tensor).tobytes(), _WEIGHT, weight.sum)
    results = [_write_number(each) for each in ready.results]
    facts = {"inputs": ready.inputs, "results": results, "copied": ready.copied, "weights": weights}
    if ready.at is not None:
        facts["capacity"] = ready.at.facts()
    head = json.dumps(facts).encode()
    kept.store(len(head).to_bytes(8, "little") + head + library, _PROGRAM, key)
    kept.prune()
    return replace(ready, code=code)


def load_refusal(kept: BinaryCache, key: str) -> str | None:
    """Return why a graph has to be made functional first, if another process has found that out."""
    content = kept.load(_REFUSED, key)
    return None if content is None else content.decode()


def store_refusal(kept: BinaryCache, key: str, reason: str) -> None:
    """Keep why a graph has to be made functional first."""
    kept.store(reason.encode(), _REFUSED, key)


def _linked(compiled: Compiled) -> bytes | None:
    from ..deploy.link import link_for

    try:
        link = link_for(compiled.target)
        with tempfile.TemporaryDirectory(prefix="smartmem-torch-") as folder:
            link.write(compiled.executable, Path(folder))
            return (Path(folder) / link.file).read_bytes()
    except (UserError, OSError, RuntimeError) as error:
        _without_linker(str(error))
        return None


@cache
def _without_linker(reason: str) -> None:
    _logger.warning("Compiled graphs of torch.compile are not kept for other processes: %s", reason)


def _library(content: bytes) -> tvm.runtime.Module | None:
    """Load a library; its file is needed for no longer than that."""
    try:
        with tempfile.TemporaryDirectory(prefix="smartmem-torch-") as folder:
            path = Path(folder) / "lib.so"
            path.write_bytes(content)
            return tvm.runtime.load_module(str(path))
    except Exception as error:  # of several types: the disk is full, or the system's loader refuses the file
        _logger.warning("A kept library cannot be loaded (%s): the graph is compiled again.", error)
        return None


def _weight(kept: BinaryCache, facts: dict) -> KeptWeight | None:
    with _lock:
        known = _shared.get(facts["sum"])
    if known is not None:
        return known
    content = kept.load(_WEIGHT, facts["sum"])
    if content is None:
        return None
    if len(content) != prod(facts["shape"]) * number_bytes(facts["dtype"]):
        return None
    return _held(facts["sum"], content, facts["shape"], facts["dtype"], facts["scope"])


def _view(tensor: tvm.runtime.Tensor) -> np.ndarray:
    return array_of(tensor).reshape(-1).view("uint8")


def _write_number(value: Any) -> Any:
    """Return a result that is a number as JSON has it, where infinities have no place."""
    return value.hex() if isinstance(value, float) else value


def _read_number(value: Any) -> Any:
    return float.fromhex(value) if isinstance(value, str) else value
