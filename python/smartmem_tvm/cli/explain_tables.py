# SPDX-License-Identifier: Apache-2.0
"""The tables of ``smartmem explain``: one row per operator and kernel, or one per kind of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..planner.storage_order import ORDER_PASSES
from .console import table

if TYPE_CHECKING:
    from rich.table import Table

_OPERATORS = "Operators before layout operators are eliminated and the rest is fused"
_FACTS = ("mapping type", "class", "result removable", "algebraic laws")
_LAYOUT = "Layout operators"
_DECISIONS = "Rewriting and fusion"
_KERNELS = "Kernels"
_MEMORY = "Memory of tensors and weights"
_ORDER = "Order of dimensions of tensors in buffers"
_STRIDED = "Tensors that a reader wants in another order (each a layout transition, as is each layout kernel)"
_NUMBERS = "Types of tensors, of arithmetic and of the factors of products"
_TEXTURES = ("PlaceTextures",)
_TYPES = ("StoreHalf", "ComputeHalf", "RoundFactors")


def full_tables(data: dict) -> Iterator[Table]:
    """Yield tables of every operator, decision and kernel; sections without entries are left out."""
    operators, layout, decisions, kernels = _sections(data)
    if operators:
        rows = ((each["operator"], *_facts(each, "yes" if each["ir_removable"] else "no")) for each in operators)
        yield table(_OPERATORS, ("operator", *_FACTS), rows)
    if layout:
        rows = ((f"{each['operator']}\n  {_fate(each)}", each["map"]) for each in layout)
        yield table(_LAYOUT, ("layout operator", "map: its indices -> where it reads"), rows)
    if decisions:
        rows = ((f"{each['operator']}\n  {_fate(each)}", _decided_by(each)) for each in decisions)
        yield table(_DECISIONS, ("operator", "decided by"), rows)
    placed, ordered, strided = _by(_TEXTURES, data), _by(ORDER_PASSES, data), data["strided"]
    if placed:
        rows = ((each["tensor"], each["memory"], _megabytes([each]), _memory(each)) for each in placed)
        yield table(_MEMORY, ("tensor", "memory", "MB", "why"), rows)
    if ordered:
        yield table(_ORDER, ("tensor", "why"), ((each["tensor"], _order(each)) for each in ordered))
    if strided:
        rows = ((each["tensor"], each["memory"], _readers(each), each["reason"]) for each in strided)
        yield table(_STRIDED, ("tensor", "memory", "wanted by", "why"), rows)
    typed = _by(_TYPES, data)
    if typed:
        yield table(_NUMBERS, ("tensor", "what", "why"), ((each["tensor"], *_typed(each)) for each in typed))
    if kernels:
        columns = ("kernel", "operators computed", "layout operators it reads or writes through")
        rows = ((_title(each), "\n".join(each["members"]), "\n".join(each["views"]) or "-") for each in kernels)
        yield table(_KERNELS, columns, rows)


def summary_tables(data: dict) -> Iterator[Table]:
    """Yield tables with one row for all operators, decisions or kernels of a kind."""
    operators, layout, decisions, kernels = _sections(data)
    if operators:
        kinds = Counter((kind(each["operator"]), *_facts(each, "{} of {}")) for each in operators)
        removable = Counter(
            (kind(each["operator"]), *_facts(each, "{} of {}")) for each in operators if each["ir_removable"]
        )
        rows = ((count, *(cell.format(removable[row], count) for cell in row)) for row, count in _largest(kinds))
        yield table(_OPERATORS, ("number", "operator", *_FACTS), rows, numbers=(0,))
    if layout:
        counted = _largest(Counter((kind(each["operator"]), _what(each)) for each in layout))
        rows = ((count, *row) for row, count in counted)
        yield table(_LAYOUT, ("number", "layout operator", "what became of it"), rows, numbers=(0,))
    if decisions:
        counted = _largest(Counter((_subject(each), _what(each), _decided_by(each)) for each in decisions))
        rows = ((count, *row) for row, count in counted)
        yield table(_DECISIONS, ("number", "operator", "what became of it", "decided by"), rows, numbers=(0,))
    placed, ordered, strided = _by(_TEXTURES, data), _by(ORDER_PASSES, data), data["strided"]
    if placed:
        yield table(_MEMORY, ("number", "what", "memory", "MB", "why"), _memory_kinds(placed), numbers=(0,))
    if ordered:
        counted = _largest(Counter(_order(each).partition(";")[0] for each in ordered))
        yield table(_ORDER, ("number", "why"), ((n, why) for why, n in counted), numbers=(0,))
    if strided:
        counted = _largest(Counter((each["memory"], each["reason"].partition(";")[0]) for each in strided))
        yield table(_STRIDED, ("number", "memory", "why"), ((n, *row) for row, n in counted), numbers=(0,))
    typed = _largest(Counter(map(_typed, _by(_TYPES, data))))
    if typed:
        yield table(_NUMBERS, ("number", "what", "why"), ((n, *row) for row, n in typed), numbers=(0,))
    if kernels:
        counted = _largest(Counter((_kinds(each["members"]), _kinds(sorted(each["views"]))) for each in kernels))
        columns = ("number", "operators computed", "layout operators it reads or writes through")
        yield table(_KERNELS, columns, ((count, *row) for row, count in counted), numbers=(0,))


def kind(label: str) -> str:
    """Return the kind of operator from its label: ``matmul`` of ``matmul12 node_linear(1, 49, 96)``."""
    name = label.split(" ")[0]
    return re.sub(r"\d+(\[\d+\])?$", "", name) or name


def _sections(data: dict) -> tuple[list, list, list, list]:
    apart = ("EliminateLayout", *_TEXTURES, *ORDER_PASSES, *_TYPES)
    decisions = [each for each in data["decisions"] if each["pass"] not in apart]
    return data["operators"], data["layout_operators"], decisions, data["kernels"]


def _by(passes: tuple[str, ...], data: dict) -> list[dict]:
    """Return the decisions of `passes` about tensors."""
    return [each for each in data["decisions"] if each["pass"] in passes and "tensor" in each]


def _memory(entry: dict) -> str:
    """Say why a tensor is in a buffer, or how it lies in a texture."""
    return entry.get("reason") or f"dimension {entry['texel']} is cut into texels"


def _memory_kinds(placed: list[dict]) -> Iterator[tuple]:
    """Yield rows of tensors and weights grouped by reason, without the kernels and figures of each."""
    groups: dict = {}
    for entry in placed:
        what, _, rest = (entry.get("reason") or "a dimension is cut into texels").partition(": ")
        # Either '<kernel>: <fault>' or '<two times>: <the slower kernel>'.
        why = rest if rest and not re.search(r"\d us ", what) else what
        groups.setdefault((entry["kind"], entry["memory"], re.sub(r"\d[\w.]*", "..", why)), []).append(entry)
    for (what, memory, why), entries in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])):
        yield len(entries), what, memory, _megabytes(entries), why


def _megabytes(entries: list[dict]) -> str:
    """Return the size in 10^6 bytes, with the share of padding."""
    size, padding = (sum(each.get(key, 0) for each in entries) / 1e6 for key in ("bytes", "padding"))
    return f"{size:.3f}" + (f", of which padding {padding:.3f}" if padding else "")


def _typed(entry: dict) -> tuple[str, str]:
    """Return the type of a tensor or kernel, and the reason for it."""
    what = next(each for each in ("stored", "computed", "multiplied") if each in entry)
    return f"{what} as {entry[what]}", entry.get("reason", "")


def _order(entry: dict) -> str:
    """Return the order in which a pass stored a tensor, and the reason."""
    changed = entry["order"] != sorted(entry["order"])
    how = f"dimensions in the order {entry['order']}" if changed else "order kept"
    return f"{how}: {entry['reason']}"


def _readers(entry: dict) -> str:
    return "\n".join(f"{each['reader']} along {each['dims']}" for each in entry["readers"])


def _largest(counter: Counter) -> list:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _kinds(labels: Iterable[str]) -> str:
    """Return the kinds of labels in order, with counts where a kind repeats."""
    counted = Counter(map(kind, labels))
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counted.items()) or "-"


def _facts(entry: dict, removable: str) -> tuple[str, str, str, str]:
    if entry["mapping_type"] is None:
        return ("-", "-", removable, entry["reason"])
    return (entry["mapping_type"], entry["quadrant"], removable, _laws(entry["properties"]) or "-")


def _laws(properties: list[str]) -> str:
    """Return laws of one operator, then laws of two, each named once: ``distributive over add, subtract``."""
    with_others: dict[str, list[str]] = {}
    for text in properties:
        law, _, other = text.rpartition(" ")
        with_others.setdefault(law, []).append(other)
    alone = with_others.pop("", [])
    return "; ".join(alone + [f"{law} {', '.join(others)}" for law, others in sorted(with_others.items())])


def _subject(entry: dict) -> str:
    """Return the kind of operator, or the subject that a rewrite rule names itself."""
    return "-" if "rule" in entry else kind(entry["operator"])


def _what(entry: dict) -> str:
    return entry["action"] + (f": {entry['reason']}" if entry.get("reason") else "")


def _decided_by(entry: dict) -> str:
    if "rule" in entry:
        return f"rule '{entry['rule']}'"
    return entry.get("decided_by") or entry["pass"]


def _fate(entry: dict) -> str:
    into = ", ".join(entry.get("into", ()))
    target = f" into {into}" if into else f" with an error of {entry['error']:.4f}" if "error" in entry else ""
    return f"{entry['action']}{target}" + (f": {entry['reason']}" if entry.get("reason") else "")


def _title(kernel: dict) -> str:
    return f"{kernel['number']}: {kernel['kernel']}\n= {kernel['result']}"
