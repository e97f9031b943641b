# SPDX-License-Identifier: Apache-2.0
"""The readers of files and messages: what each is given at first, how that is changed, and how it is called.

A reader takes what it is given or raises `UserError`, messages of the network `OSError` too; all else is a fault.
"""

import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import tvm

import smartmem_tvm
from fuzz_readers import seeds
from fuzz_readers.mutations import changed_bytes, changed_json_text, changed_model_bytes
from smartmem_tvm import UserError, frontend
from smartmem_tvm.bench import results
from smartmem_tvm.deploy import export
from smartmem_tvm.deploy.weights import map_weights
from smartmem_tvm.frontend.inputs import id_limits, read_arrays
from smartmem_tvm.module_file import read_module
from smartmem_tvm.page.html import page
from smartmem_tvm.page.sources import read_sources
from smartmem_tvm.remote import devices, keys, wire
from smartmem_tvm.tune import record_lines, records
from smartmem_tvm.tune.profile_store import ProfileStore
from smartmem_tvm.tune.select_winners import choose

TARGET = tvm.target.Target(seeds.TARGET)


@dataclass(frozen=True)
class Reader:
    """Something that reads what others wrote.

    Attributes
    ----------
    seeds
        Returns whole files.
    change
        Makes another file of one.
    read
        Is called with the path of a file, alone in its folder.
    """

    seeds: Callable[[], list[bytes]]
    change: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]
    allowed: tuple[type[Exception], ...] = (UserError,)
    file: str = "input"


def _model(path: Path) -> None:
    id_limits(frontend.read_model(path).proto)


def _import(path: Path) -> None:
    model = frontend.read_model(path)
    frontend.unsupported_operators(model.proto)
    smartmem_tvm.from_onnx(model)


def _compile(path: Path) -> None:
    compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(path))
    assert compiled.executable is not None


def _records(path: Path) -> None:
    lines = records.lines_of(path)
    record_lines.check(path)
    record_lines.prune(record_lines.sift(lines)[1], 1)
    record_lines.merge([lines, lines])
    choose(lines, records.circumstances(TARGET, 1))
    records.Records(path, records.circumstances(TARGET, 1), {})


def _manifest(path: Path) -> None:
    folder = path.parent
    (folder / export.WEIGHTS).write_bytes(bytes(4096))
    (folder / export.EXPLANATION).write_text("{}")
    (folder / "lib.so").write_bytes(b"")
    manifest = export.read_manifest(folder)
    export.Loaded(manifest, None).inputs  # noqa: B018
    tvm.target.Target(manifest["target"])
    map_weights(folder / export.WEIGHTS, manifest["weights"])
    export.check_files(folder, manifest)


def _report(path: Path) -> None:
    page(read_sources([str(path)]))


def _answer(data: bytes) -> wire.Connection:
    """A connection on which a tracker says this."""
    mine, other = socket.socketpair()
    other.sendall(data)
    other.close()
    connection = wire.Connection.__new__(wire.Connection)
    connection.timeout, connection.socket = 1.0, mine
    return connection


def _tracker(path: Path) -> None:
    with _answer(path.read_bytes()) as connection:
        keys.states(connection)


def _devices(path: Path) -> None:
    devices.devices_of(path.read_text(encoding="utf-8", errors="replace"))


READERS = {
    "model": Reader(seeds.models, changed_model_bytes, _model, file="m.onnx"),
    "model-bytes": Reader(seeds.models, changed_bytes, _model, file="m.onnx"),
    "import": Reader(seeds.models, changed_model_bytes, _import, file="m.onnx"),
    "compile": Reader(seeds.models, changed_model_bytes, _compile, file="m.onnx"),
}
