# SPDX-License-Identifier: Apache-2.0
"""The readers of files and messages: what each is given at first, how that is changed, and how it is called.

A reader takes what it is given or raises `UserError`, messages of the network `OSError` too; all else is a fault.
"""

import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import smartmem_tvm
from fuzz_readers import seeds
from fuzz_readers.mutations import changed_bytes, changed_json_text, changed_model_bytes
from smartmem_tvm import UserError, frontend
from smartmem_tvm.deploy import export, manifest
from smartmem_tvm.deploy.weights import map_weights
from smartmem_tvm.frontend.inputs import id_limits, read_arrays
from smartmem_tvm.frontend.walk_graph import computes_in_half, count_nodes
from smartmem_tvm.json_data import plain
from smartmem_tvm.module_file import read_module
from smartmem_tvm.remote import about, inspect_devices, keys, wire
from smartmem_tvm.tools.bench import results
from smartmem_tvm.tools.page.html import page, report_data
from smartmem_tvm.tools.page.read_sources import read_sources
from smartmem_tvm.tune import record_lines, records
from smartmem_tvm.tune.apply_records import ApplyRecords
from smartmem_tvm.tune.profile_store import ProfileStore
from smartmem_tvm.tune.select_winners import choose


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
    model = frontend.read_model(path)
    assert model.inputs is not None and id_limits(model.proto) is not None
    assert count_nodes(model.proto) and computes_in_half(model.proto) in (True, False)


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
    choose(lines, records.circumstances(seeds.TARGET, 1))
    records.Records(path, records.circumstances(seeds.TARGET, 1), {})


def _tuned(path: Path) -> None:
    """Compile the kernels of the seeds with what the file says of them."""
    chosen = choose(records.lines_of(path), records.circumstances(seeds.TARGET, 1))
    with seeds.TARGET:
        for size in (4, 8):
            ApplyRecords(chosen.database)(seeds.kernel(size))


def _profiles(path: Path) -> None:
    store = ProfileStore(path, seeds.TARGET, 1)
    kernel = seeds.kernel(4)["main"]
    store.compare([kernel], [kernel])


def _module(path: Path) -> None:
    mod = read_module(path)
    with contextlib.suppress(Exception):  # it may still be wrong, and whoever goes on with it says so
        mod.script()


def _manifest(path: Path) -> None:
    folder = path.parent
    for name, content in seeds.compiled().items():
        if name != path.name and not (folder / name).exists():
            (folder / name).write_bytes(content)
    read = manifest.read_manifest(folder)
    export.Loaded(read, None).inputs  # noqa: B018
    map_weights(folder / manifest.WEIGHTS, read["weights"])
    manifest.check_files(folder, read)


def _report(path: Path) -> None:
    page(plain(report_data(read_sources([str(path)]))))


def _folder_report(path: Path) -> None:
    for name in (manifest.MANIFEST, manifest.EXPLANATION):
        if name != path.name:
            (path.parent / name).write_bytes(seeds.compiled()[name])
    _report(path.parent)


def _tracker(path: Path) -> None:
    """A tracker that says this, and hangs up."""
    mine, other = socket.socketpair()
    with other:
        wire.send_text(other, path.read_text(encoding="utf-8", errors="replace")[:100_000])
    with wire.Connection.over(mine, 1.0) as connection:
        keys.states(connection)


def _server(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    about.parse_about(text)
    for each in map(inspect_devices.fitted, about.parse_devices(text)):
        inspect_devices.row_text(each)


READERS = {
    "model": Reader(seeds.models, changed_model_bytes, _model, file="m.onnx"),
    "model-bytes": Reader(seeds.models, changed_bytes, _model, file="m.onnx"),
    "import": Reader(seeds.models, changed_model_bytes, _import, file="m.onnx"),
    "compile": Reader(seeds.models, changed_model_bytes, _compile, file="m.onnx"),
    "records": Reader(seeds.records, changed_json_text, _records, file="r.jsonl"),
    "tuned": Reader(seeds.records, changed_json_text, _tuned, file="r.jsonl"),
    "profiles": Reader(seeds.profiles, changed_json_text, _profiles, file="p.jsonl"),
    "module": Reader(seeds.modules, changed_json_text, _module, file="m.json"),
    "manifest": Reader(seeds.manifests, changed_json_text, _manifest, file=manifest.MANIFEST),
    "report-manifest": Reader(seeds.manifests, changed_json_text, _folder_report, file=manifest.MANIFEST),
    "report-explanation": Reader(seeds.explanations, changed_json_text, _folder_report, file=manifest.EXPLANATION),
    "report-results": Reader(seeds.results, changed_json_text, _report, file="r.json"),
    "results": Reader(seeds.results, changed_json_text, results.read, file="r.json"),
    "tracker": Reader(seeds.summaries, changed_json_text, _tracker, (UserError, OSError)),
    "server": Reader(seeds.devices, changed_json_text, _server),
    "arrays": Reader(seeds.arrays, changed_bytes, lambda path: read_arrays(str(path), ["x"]), file="x.npz"),
}
