# SPDX-License-Identifier: Apache-2.0
"""Describe a compiled model: its operators before, its kernels after, and the fate of each operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ... import json_data
from .graph_columns import lanes
from .tensors import memory, tensors

COMPUTED, ELIMINATED, REWRITTEN, CONSTANT, GONE = "computed", "eliminated", "rewritten", "constant", "gone"
_REASONS = {
    CONSTANT: "it depends on weights only, and was computed when the model was compiled",
    GONE: "nothing reads it any more, or an equal operator computes it",
}


def network(folder: str, manifest: Mapping, explanation: Mapping) -> dict:
    """Return a compiled model as data for the page.

    Returns
    -------
    dict
        ``operators``: one for each node of the imported model, sorted by the kernel that contains it, with its
        ``fate``. ``kernels``: in the order of execution, each with the range of ``operators`` that it contains.
        ``inputs`` of both are numbers of others of their kind; ``lane`` is the column that each is drawn in.
        ``decisions``: those of the passes. ``tensors``, ``memory``: see `page.tensors`. ``facts``: figures.
    """
    graphs = explanation.get("graphs") or {"before": _EMPTY, "after": _EMPTY}
    kernels = _kernels(graphs["after"], explanation, manifest)
    operators = _operators(graphs, kernels, explanation)
    for number, kernel in enumerate(kernels):
        mine = [place for place, each in enumerate(operators) if each["kernel"] == number]
        kernel["operators"] = [mine[0], mine[-1] + 1] if mine else [0, 0]
    sizes = manifest.get("sizes", ())
    # Of several sizes the graphs and the figures are those of the first.
    plans = [explanation.get("memory_by_size", {}).get(each["function"]) for each in sizes[:1]]
    plan = memory((plans[0] if plans else explanation.get("memory")) or {}, manifest)
    return {
        "name": Path(str(manifest.get("model", folder))).stem,
        "folder": folder,
        "about": _about(manifest),
        "facts": _facts(manifest, operators, explanation, plan),
        "operators": operators,
        "kernels": kernels,
        "decisions": explanation.get("decisions", []),
        "tensors": tensors(graphs["after"], explanation),
        "memory": plan,
    }


_EMPTY: dict = {"inputs": [], "nodes": [], "outputs": []}


def _about(manifest: Mapping) -> dict:
    """Return the texts of the header."""
    target = manifest.get("target", "")
    try:
        parts = json_data.parse(target)
    except ValueError:
        parts = {}
    if not isinstance(parts, dict):
        parts = {}
    sizes = manifest.get("sizes", ())
    named = parts.get("model") or parts.get("mcpu") or manifest.get("cpu") or parts.get("arch") or ""
    return {
        "target": " ".join(filter(None, (str(parts.get("kind") or target), str(named)))),
        "host": manifest.get("host") or "",
        "precision": manifest.get("precision", ""),
        "smartmem": manifest.get("smartmem_tvm", ""),
        "tvm": manifest.get("apache-tvm", ""),
        "inputs": [
            *(
                f"{each['name']}: {each['dtype']} {'x'.join(map(str, each['shape']))}"
                for each in manifest.get("inputs", [])
            ),
            *([f"the first of {len(sizes)} sizes"] if sizes else []),
        ],
        "outputs": manifest.get("outputs", []),
    }


def _facts(manifest: Mapping, operators: list[dict], explanation: Mapping, plan: Mapping) -> dict:
    layout = explanation.get("layout_operators", [])
    tuning = manifest.get("tuning") or {}
    return {
        "operators": len(operators),
        "kernels": manifest.get("kernels"),
        "layout_kernels": manifest.get("layout_kernels"),
        "layout_operators": len(layout),
        "layout_eliminated": sum(each["action"] == ELIMINATED for each in layout),
        "strided": len(explanation.get("strided", [])),
        "kernel_programs": tuning.get("kernels"),
        "tuned": tuning.get("tuned"),
        "planned_bytes": plan["planned_bytes"],
        "live_bytes": plan["live_bytes"],
        "weight_bytes": plan["weight_bytes"],
    }


def _kernels(after: Mapping, explanation: Mapping, manifest: Mapping) -> list[dict]:
    """Return the nodes of the graph of kernels with the passes' explanations."""
    explained = {each["result"]: each for each in explanation.get("kernels", [])}
    rules = explanation.get("rules", {})
    gains = (manifest.get("tuning") or {}).get("gains", {})
    writer = {t["name"]: number for number, node in enumerate(after["nodes"]) for t in node["outputs"]}
    found = []
    for node in after["nodes"]:
        said = explained.get(node["name"], {"members": [], "views": []})
        found.append(
            {
                "kernel": node["operator"],
                "result": node["name"],
                "outputs": node["outputs"],
                "reads": node["inputs"],
                "inputs": [writer[name] for name in node["inputs"] if name in writer],
                "weight_bytes": sum(each["bytes"] for each in node["weights"]),
                "weights": [f"{w['dtype']} {'x'.join(map(str, w['shape']))} {w['memory']}" for w in node["weights"]],
                "rule": rules.get(node["operator"], {}).get("name"),
                "family": rules.get(node["operator"], {}).get("family"),
                "tuned": gains.get(node["operator"]),
                "members": said["members"],
                "views": said["views"],
            }
        )
    for kernel, lane in zip(found, lanes([each["inputs"] for each in found]), strict=True):
        kernel["lane"] = lane
    return found


def variable(label: str) -> str:
    """Return the tensor's name in an operator's label: ``node_linear`` of ``matmul12 node_linear(1, 49, 96)[0]``."""
    found = re.match(r"\S+ ([^(]+)\(", label)
    return found[1] if found else label


def _homes(kernels: Iterable[Mapping], key: str) -> dict[str, list[int]]:
    """Return name of an operator's result -> the kernels that list it under `key`."""
    found: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        for label in kernel[key]:
            found.setdefault(variable(label), []).append(number)
    return found


def _operators(graphs: Mapping, kernels: list[dict], explanation: Mapping) -> list[dict]:
    """Return the nodes of the imported graph with their fates, sorted by kernel."""
    before = graphs["before"]
    # Passes may rename a result of the model.
    renamed = dict(zip(before["outputs"], graphs["after"]["outputs"]))
    fates = _Fates(kernels, explanation)
    constant = _constants(before)
    found = []
    for node in before["nodes"]:
        outputs = [each["name"] for each in node["outputs"]]
        names = [node["name"], *(renamed[name] for name in outputs if name in renamed)]
        found.append(
            {
                "name": node["name"],
                "operator": node["operator"],
                "shape": node["outputs"][0]["shape"] if node["outputs"] else [],
                "dtype": node["outputs"][0]["dtype"] if node["outputs"] else "",
                **fates.of(names, node["name"] in constant),
            }
        )
    writer = {t["name"]: number for number, node in enumerate(before["nodes"]) for t in node["outputs"]}
    reads = [[writer[name] for name in node["inputs"] if name in writer] for node in before["nodes"]]
    _find_homes(found, reads)
    order = sorted(range(len(found)), key=lambda number: (found[number]["kernel"], number))
    place = {number: at for at, number in enumerate(order)}
    sorted_reads = [sorted(place[source] for source in reads[number]) for number in order]
    columns = lanes(sorted_reads)
    return [
        {**found[number], "inputs": sources, "lane": lane}
        for number, sources, lane in zip(order, sorted_reads, columns, strict=True)
    ]


def _constants(graph: Mapping) -> set[str]:
    """Return the nodes that depend on no input of the model."""
    moving = {each["name"] for each in graph["inputs"]}
    found = set()
    for node in graph["nodes"]:
        if moving.isdisjoint(node["inputs"]):
            found.add(node["name"])
        else:
            moving |= {each["name"] for each in node["outputs"]}
    return found


class _Fates:
    """Find the fate of an operator by the name of its result."""

    def __init__(self, kernels: list[dict], explanation: Mapping):
        self._members, self._views = _homes(kernels, "members"), _homes(kernels, "views")
        self._layout = {variable(each["operator"]): each for each in explanation.get("layout_operators", [])}
        self._rewrites: dict[str, dict] = {}
        for entry in explanation.get("decisions", []):
            if "operator" in entry and entry.get("action") not in ("kept", "fused"):
                self._rewrites.setdefault(variable(entry["operator"]), entry)

    def of(self, names: list[str], constant: bool) -> dict:
        """Return ``fate``, ``kernel`` (None if it is unknown), ``into`` (all kernels), ``reason`` and ``map``."""
        entry = next((self._rewrites[name] for name in names if name in self._rewrites), None)
        # If a layer was merged, a slice of the merged layer has its name.
        if entry is not None and entry.get("action") == "merged":
            return self._rewritten(entry)
        for name in names:
            layout = self._layout.get(name, {})
            said = {"reason": layout.get("reason", ""), "map": layout.get("map", "")}
            for fate, homes in ((COMPUTED, self._members), (ELIMINATED, self._views)):
                if name in homes:
                    return {"fate": fate, "kernel": homes[name][0], "into": homes[name], **said}
        if constant:
            return {"fate": CONSTANT, "kernel": None, "into": [], "reason": _REASONS[CONSTANT], "map": ""}
        if entry is None:
            return {"fate": GONE, "kernel": None, "into": [], "reason": _REASONS[GONE], "map": ""}
        return self._rewritten(entry)

    def _rewritten(self, entry: Mapping) -> dict:
        into = [n for each in entry.get("into", ()) for n in self._members.get(variable(str(each)), ())]
        reason = entry.get("reason") or f"{entry.get('action', 'changed')} by {entry['pass']}"
        home = {"kernel": into[0] if into else None, "into": sorted(set(into))}
        return {"fate": REWRITTEN, **home, "reason": reason, "map": entry.get("map", "")}


def _find_homes(operators: list[dict], reads: list[list[int]]) -> None:
    """Place operators outside of any kernel with their first reader, or otherwise with the operator that they read."""
    for number in reversed(range(len(operators))):
        home = operators[number]["kernel"]
        for source in reads[number]:
            mine = operators[source]
            if home is not None and not mine["into"]:
                mine["kernel"] = home if mine["kernel"] is None else min(home, mine["kernel"])
    for each, sources in zip(operators, reads, strict=True):
        if each["kernel"] is None:
            each["kernel"] = max((operators[source]["kernel"] for source in sources), default=0)
