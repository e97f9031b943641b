# SPDX-License-Identifier: Apache-2.0
"""The table of docs/frontend.md, of what torch_doors.py found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rendering import content, dates, host, table

RESULTS = "torch_doors.json"
TITLES = ("network", "made as", "kernels", "layout kernels", "MB", "through the file", "error", "import, s", "TVM's, s")


def figures() -> str:
    """What both doors give, network by network, and where it was measured."""
    rows: Sequence[Mapping] = content(RESULTS)
    lines = table(TITLES, map(_line, sorted(rows, key=lambda row: (row["package"], row["name"].lower()))))
    machine = rows[0]["machine"]
    return f"{lines}\n\n{host(machine)}, torch {rows[0]['torch']}, {dates(rows)}."


def _line(row: Mapping) -> tuple:
    ours, file, tvm = (row[door] for door in ("from_torch", "onnx", "tvm"))
    made = f"{row['package']}, {row['scale']}" if row["scale"] else row["package"]
    costs = (ours["kernels"], ours["layout_kernels"], f"{ours['bytes'] / 1e6:.1f}")
    seconds = (f"{ours['seconds']:.1f}", f"{tvm['seconds']:.1f}" if "seconds" in tvm else "refused")
    return (row["name"], made, *costs, _compared(ours, file), f"{row['error']:.0e}", *seconds)


def _compared(ours: Mapping, file: Mapping) -> str:
    keys = ("kernels", "layout_kernels", "bytes")
    if all(ours[key] == file[key] for key in keys):
        return "the same"
    return f"{file['kernels']}, {file['layout_kernels']}, {file['bytes'] / 1e6:.1f} ({file['exporter']})"
