# SPDX-License-Identifier: Apache-2.0
"""The result file of a benchmark: one row per model, written when it is finished, and reused while it is valid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...json_data import fits
from ...json_data import read as read_json
from ...whole_file import whole

FORMAT = 1


class Results:
    """Rows by model, in the order of their first appearance; in a file, or in memory only.

    Parameters
    ----------
    path : Path or None
        The file, read if it exists. It is written completely after each new row, under a temporary name that is then
        renamed.

    Raises
    ------
    UserError
        If the file exists but is not a result file.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: dict[str, dict] = {}
        if path is not None and path.exists():
            self.rows = read(path)

    def kept(self, model: str, fingerprint: str) -> dict | None:
        """Return the row of a model if it needs no new measurement: same fingerprint, and no failures."""
        row = self.rows.get(model)
        if row is None or row.get("fingerprint") != fingerprint or failures(row):
            return None
        return row

    def add(self, row: dict) -> None:
        """Add a row, or replace the model's old one."""
        self.rows[row["model"]] = row
        if self.path is not None:
            content = {"format": FORMAT, "rows": list(self.rows.values())}
            write(self.path, json.dumps(content, indent=1) + "\n")


def read(path: Path) -> dict[str, dict]:
    """Return the rows of a result file by model.

    Raises
    ------
    UserError
        If it is not a result file, or has another format.
    """
    try:
        content = read_json(path)
        if not fits(content, {"format": object, "rows": [{"model": str, "systems?": dict}]}):
            raise ValueError("it has no rows")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a result file of smartmem bench; give another name for --output.") from error
    if content["format"] != FORMAT:
        raise UserError(f"{path} has format {content['format']}, not {FORMAT}; give another name for --output.")
    return {row["model"]: row for row in content["rows"]}


def rounded(value: Any) -> Any:
    """Round measured figures to four digits, more than their precision; counts are integers and stay exact."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(path: Path, text: str) -> None:
    """Write a file that is complete or absent.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def failures(row: Mapping) -> list[str]:
    """Return the errors in a row: of the whole model, or of single systems."""
    return [each["error"] for each in (row, *row.get("systems", {}).values()) if "error" in each]


def fingerprint(package: Path, model: Path, settings: Mapping) -> str:
    """Return a hash of everything that a row depends on: this package's code, the model file, the settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in [*sorted(package.rglob("*.py")), model]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
