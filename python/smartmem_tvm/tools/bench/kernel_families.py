# SPDX-License-Identifier: Apache-2.0
"""Share the time of an inference on a GPU among families of kernels, and pair kernels of two systems."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm

    from ...runtime.launch_times import TimedLaunch

BUFFER, TEXTURE = "buffer", "texture"


def shares(graph: tvm.IRModule, launches: Sequence[TimedLaunch], each: bool = False) -> dict:
    """Return facts for a result file.

    Parameters
    ----------
    graph : tvm.IRModule
        The graph of the launched kernels, before they were scheduled.
    launches : sequence of TimedLaunch
    each : bool
        Keep the time of every launch.

    Returns
    -------
    dict
        ``device_ms`` of all launches; ``layout_share`` of it in kernels that only move data; ``families``: their
        ``launches`` and ``ms``; with `each` ``launch_us``: ``FAMILY/MEMORY/RESULT`` -> microseconds, where MEMORY is
        "texture" if the kernel reads or writes one.
    """
    from ...analysis.family import OTHER, family_of
    from ...graph_report import only_moves_data
    from ...ir.texels import is_texture

    functions = {gvar.name_hint: func for gvar, func in graph.functions.items()}
    known = {name: functions[name] for name in {launch.kernel for launch in launches} & set(functions)}
    family = {name: family_of(func) for name, func in known.items()}
    moving = {name for name, func in known.items() if only_moves_data(func)}
    textured = {name for name, func in known.items() if any(map(is_texture, func.params))}
    results, families, one_by_one = _results(graph), defaultdict(lambda: {"launches": 0, "ms": 0.0}), {}
    for number, launch in enumerate(launches):
        name = family.get(launch.kernel, OTHER)
        families[name]["launches"] += 1
        families[name]["ms"] += launch.seconds * 1e3
        result = results[launch.kernel].popleft() if results.get(launch.kernel) else str(number)
        memory = TEXTURE if launch.kernel in textured else BUFFER
        one_by_one[f"{name}/{memory}/{result}"] = launch.seconds * 1e6
    total = sum(launch.seconds for launch in launches)
    layout = sum(launch.seconds for launch in launches if launch.kernel in moving)
    facts = {"device_ms": total * 1e3, "layout_share": layout / total if total else 0.0, "families": dict(families)}
    return facts | ({"launch_us": one_by_one} if each else {})


def _results(graph: tvm.IRModule) -> dict[str, deque]:
    """Return kernel -> the names of its results, in the order of its calls."""
    from ...graph_report import explain

    found: dict[str, deque] = defaultdict(deque)
    for each in explain(graph)["kernels"]:
        found[each["kernel"]].append(each["result"])
    return found


def paired(systems: Mapping[str, Mapping], texture: str, buffer: str) -> dict[str, list[float]]:
    """Return the times of kernels with textures over those of the same kernels without.

    Parameters
    ----------
    systems : mapping
        The systems of a row of a result file.
    texture, buffer : str
        Two systems of ours with the same graph of kernels.

    Returns
    -------
    dict
        Family in buffers -> a ratio for each kernel that accesses a texture and has a counterpart in buffers with a
        result of the same name.
    """
    doubles = {}
    for key, microseconds in systems.get(buffer, {}).get("launch_us", {}).items():
        family, _, result = key.split("/", 2)
        doubles[result] = family, microseconds
    ratios: dict[str, list[float]] = defaultdict(list)
    for key, microseconds in systems.get(texture, {}).get("launch_us", {}).items():
        _, memory, result = key.split("/", 2)
        family, beside = doubles.get(result, ("", 0.0))
        if memory == TEXTURE and microseconds > 0 and beside > 0:
            ratios[family].append(microseconds / beside)
    return dict(ratios)
