# SPDX-License-Identifier: Apache-2.0
"""Read the sources of a report and recognise each folder and file by its content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ... import json_data
from ...errors import UserError
from ...tune import json_lines
from ...tune.record_lines import kind_of

MANIFEST, EXPLANATION = "manifest.json", "explain.json"


@dataclass
class Sources:
    """Contents of folders and files, with their names as given.

    Attributes
    ----------
    models : list
        (folder, manifest, explanation) of each compiled model.
    records : list
        (file, lines) of each file of ``smartmem tune``.
    rows : list
        (file, row) of each model in results of ``smartmem bench``.
    measurements : list
        (file, measurement): objects with a ``latency_ms``, or ``kernels`` with ``seconds``.
    """

    models: list[tuple[str, dict, dict]] = field(default_factory=list)
    records: list[tuple[str, list[dict]]] = field(default_factory=list)
    rows: list[tuple[str, dict]] = field(default_factory=list)
    measurements: list[tuple[str, dict]] = field(default_factory=list)


def read_sources(paths: Iterable[str], several: bool = False) -> Sources:
    """Read folders and files of any kind.

    Parameters
    ----------
    several : bool
        Whether the caller knows models of several sizes.

    Raises
    ------
    UserError
        If one cannot be read, is of no known kind, or is a model of several sizes and they are not known.
    """
    found = Sources()
    for text in paths:
        path = Path(text)
        if path.is_dir():
            manifest = _object(path / MANIFEST, path)
            if manifest.get("sizes") and not several:
                from ...deploy.manifest import require_one_size

                require_one_size(path, manifest)
            found.models.append((text, manifest, _object(path / EXPLANATION, path)))
        elif path.suffix == ".jsonl":
            found.records.append((text, _lines(path)))
        else:
            _take(found, text, _json(path))
    return found


def _object(file: Path, folder: Path) -> dict:
    if not file.is_file():
        raise UserError(f"{folder} holds no compiled model; make one with `smartmem compile MODEL -o {folder}`.")
    content = _json(file)
    if not isinstance(content, dict):
        raise UserError(f"{file} is not the one that was compiled; compile the model again.")
    return content


def _json(path: Path) -> object:
    try:
        return json_data.read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); name another file or folder.") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON; {_KINDS}.") from error


def _lines(path: Path) -> list[dict]:
    lines = [line for line in json_lines.read(path)[0] if kind_of(line) is not None]
    if not lines:
        raise UserError(f"{path} has no line of tuning records; `smartmem tune MODEL --records {path}` makes some.")
    return lines


_KINDS = (
    "a report is made of folders of `smartmem compile`, records (.jsonl) of `smartmem tune`, and JSON of `smartmem "
    "bench -o`, `smartmem measure --json` or `smartmem explain --schedules --json`"
)


def _take(found: Sources, name: str, content: object) -> None:
    """Add content to its list, chosen by its fields."""
    if isinstance(content, list) and content:
        for each in content:
            _take(found, name, each)
    elif isinstance(content, dict) and isinstance(content.get("rows"), list):
        found.rows += [(name, row) for row in content["rows"] if isinstance(row, dict)]
    elif isinstance(content, dict) and (sizes := content.get("sizes")) and isinstance(sizes, list):
        shared = {key: value for key, value in content.items() if key != "sizes"}
        _take(
            found, name, [{**shared, **each, "of_several": True} if isinstance(each, dict) else each for each in sizes]
        )
    elif isinstance(content, dict) and _is_measurement(content):
        found.measurements.append((name, content))
    else:
        raise UserError(f"{name} is none of the results known here; {_KINDS}.")


def _is_measurement(content: Mapping) -> bool:
    kernels = content.get("kernels")
    timed = isinstance(kernels, list) and any(isinstance(each, dict) and "seconds" in each for each in kernels)
    return timed or isinstance(content.get("latency_ms"), dict)
