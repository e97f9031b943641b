# SPDX-License-Identifier: Apache-2.0
"""Memory and layout of each tensor of the graph of kernels, with reasons, and memory use over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ...planner.arena import Block, live_bytes


def tensors(after: Mapping, explanation: Mapping) -> list[dict]:
    """Return the inputs, the results of kernels, and the weights that a pass placed.

    Returns
    -------
    list of dict
        ``tensor``, ``kind`` (input, tensor, result, weight), ``shape`` and ``dtype`` in memory, ``bytes``, ``memory``,
        ``texel`` (the dimension split into texels), ``padding`` (bytes), ``order`` of dimensions, ``writer`` and
        ``readers`` (results of kernels), ``strided`` (readers that prefer another order) and ``reason``.
    """
    decided: dict[str, dict] = {}
    for entry in explanation.get("decisions", []):
        if "tensor" in entry:
            decided.setdefault(entry["tensor"], {}).update(entry)
    strided = {each["tensor"]: each for each in explanation.get("strided", [])}
    readers: dict[str, list[str]] = {}
    for node in after["nodes"]:
        for name in node["inputs"]:
            readers.setdefault(name, []).append(node["name"])
    given = [("input", "", each) for each in after["inputs"]]
    made = [
        ("result" if each["name"] in after["outputs"] else "tensor", node["name"], each)
        for node in after["nodes"]
        for each in node["outputs"]
    ]
    found = []
    for kind, writer, tensor in given + made:
        wanted = strided.get(tensor["name"], {})
        entry = decided.pop(tensor["name"], {})
        where = {"writer": writer, "readers": readers.get(tensor["name"], [])}
        found.append({**_entry(tensor, kind, entry, wanted), **where})
    for name, entry in decided.items():
        weight = {"name": name, "shape": entry.get("shape", []), "dtype": "", "bytes": entry.get("bytes", 0)}
        if entry.get("kind") == "weight":
            found.append({**_entry(weight, "weight", entry, {}), "writer": "", "readers": []})
    return found


def _entry(tensor: Mapping, kind: str, decided: Mapping, wanted: Mapping) -> dict:
    unserved = [f"{each['reader']} along {each['dims']}" for each in wanted.get("readers", [])]
    reasons = dict.fromkeys(filter(None, (decided.get("reason"), wanted.get("reason"))))
    return {
        "tensor": tensor["name"],
        "kind": kind,
        "shape": tensor["shape"],
        "dtype": tensor["dtype"],
        "bytes": tensor["bytes"],
        "memory": decided.get("memory") or tensor.get("memory", "buffer"),
        "texel": decided.get("texel"),
        "padding": decided.get("padding", 0),
        "order": decided.get("order"),
        "strided": unserved,
        "reason": "; ".join(reasons),
    }


def memory(plan: Mapping, manifest: Mapping) -> dict:
    """Return the plan of `deploy.memory_plan` with sums.

    Returns
    -------
    dict
        The plan with ``planned_bytes`` (of all storages), ``live`` (bytes of tensors in use at each step),
        ``live_bytes`` (their maximum), ``weight_bytes``, which includes small constants in the code; None if the folder
        lacks it. Each storage has the number of its ``tensors``, and ``live_bytes``, the largest number of its bytes in
        use at once.
    """
    steps, found = plan.get("steps", []), plan.get("tensors", [])
    live = _live(len(steps), found)
    held = [[each for each in found if each["storage"] == number] for number in range(len(plan.get("storages", [])))]
    weights = manifest.get("weights")
    return {
        "steps": steps,
        "storages": [
            {**storage, "tensors": len(mine), "live_bytes": max(_live(len(steps), mine), default=0)}
            for storage, mine in zip(plan.get("storages", []), held)
        ],
        "tensors": found,
        "live": live,
        "planned_bytes": sum(each["bytes"] for each in plan.get("storages", [])) if plan else None,
        "live_bytes": max(live) if live else None,
        "weight_bytes": None if weights is None else _weight_bytes(weights, manifest),
    }


def _weight_bytes(weights: Iterable[Mapping], manifest: Mapping) -> int:
    return sum(prod(each["shape"]) * _item(each["dtype"]) for each in weights) + manifest.get("constant_bytes", 0)


def _live(steps: int, tensors: Iterable[Mapping]) -> list[int]:
    """Return the bytes in use at each step."""
    live = live_bytes([Block(each["bytes"], each["first"], each["last"]) for each in tensors]).tolist()
    return live + [0] * (steps - len(live))


def _item(dtype: str) -> int:
    bits = "".join(character for character in dtype if character.isdigit())
    return max(1, int(bits) // 8) if bits else 1
