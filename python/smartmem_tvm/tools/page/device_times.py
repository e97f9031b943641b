# SPDX-License-Identifier: Apache-2.0
"""Times of networks and of kernels on devices, and the gain of each technique."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..bench.columns import activations, latency

_FIGURES = ("median", "p10", "p90", "p99", "runs")


def comparison(
    measurements: Iterable[tuple[str, Mapping]], rows: Iterable[tuple[str, Mapping]], networks: Sequence[Mapping] = ()
) -> list[dict]:
    """Return one line for each timed network, device and system.

    Parameters
    ----------
    networks : sequence
        `page.network.network` of the given folders, which measurements may name.

    Returns
    -------
    list of dict
        ``file``, ``model``, ``folder`` (name of the compiled one), ``device``, ``driver``, ``system``, ``median``,
        ``p10``, ``p90``, ``p99`` (ms), ``runs``, ``kernels``, ``layout_share``, ``relative_error`` (the largest of all
        outputs), ``correct``, ``replays``, ``deterministic`` and ``wrong`` (kernels that differ from this machine's
        CPU); None if a measurement lacks it.
    """
    timed = [(file, each) for file, each in measurements if isinstance(each.get("latency_ms"), dict)]
    measured = [_measured(file, each, _model(file, each, networks)) for file, each in timed]
    benched = [
        _line(file, row.get("name") or row["model"], _machine(row, facts), system, facts)
        for file, row in rows
        for system, facts in row.get("systems", {}).items()
        if isinstance(facts.get("latency_ms"), dict) and not _is_step(row, system)
    ]
    return measured + benched


def _model(file: str, found: Mapping, networks: Sequence[Mapping]) -> str:
    """Return the measured network: that of the folder or file that a measurement names."""
    folder = Path(str(found.get("folder") or "")).name
    known = {Path(each["folder"]).name: each["name"] for each in networks}
    if folder in known:
        return known[folder]
    return Path(str(found.get("model") or "")).stem or folder or Path(file).stem


def _is_step(row: Mapping, system: str) -> bool:
    """Whether a system was timed only for the ablation."""
    return any(step["system"] == system for step in row.get("ablation", ())) and system.startswith("-")


def _measured(file: str, found: Mapping, model: str) -> dict:
    outputs = found.get("outputs") or {}
    errors = [each.get("max_rel_err") for each in outputs.values()] if isinstance(outputs, dict) else []
    known = [each for each in (found.get("relative_error"), *errors) if each is not None]
    model += f", {found.get('size')}" if found.get("of_several") else ""
    told = {name: found.get(name) for name in ("layout_share", "correct", "replays", "deterministic")}
    told["folder"] = Path(str(found.get("folder") or "")).name
    if "layers" in found:
        told["wrong"] = [name for each in found["layers"] if each.get("wrong") for name in each.get("kernels", ())]
    line = _line(file, model, _device(found), found.get("system") or "smartmem", found)
    return {**line, **told, "relative_error": max(known, default=None)}


def _line(file: str, model: str, device: tuple[str, str], system: str, facts: Mapping) -> dict:
    times = {name: facts["latency_ms"].get(name) for name in _FIGURES}
    kernels = facts.get("kernels")
    return {
        "file": file,
        "model": model,
        "folder": "",
        "device": device[0],
        "driver": device[1],
        "system": system,
        **times,
        "kernels": sum(each.get("launches") or 0 for each in kernels) if isinstance(kernels, list) else kernels,
        "relative_error": facts.get("relative_error"),
        **dict.fromkeys(("layout_share", "correct", "replays", "deterministic", "wrong")),
    }


def _device(found: Mapping) -> tuple[str, str]:
    """Return name and driver from the fields that a measurement has."""
    device = found.get("device")
    named = device if isinstance(device, dict) else {"name": device}
    name = named.get("name") or found.get("cpu") or found.get("target") or "this machine"
    threads = f", {_threads(found['threads'])}" if found.get("threads") else ""
    key = f" ({found['key']})" if found.get("key") else ""
    return f"{name}{key}{threads}", str(named.get("driver") or "")


def _machine(row: Mapping, facts: Mapping) -> tuple[str, str]:
    """Return the device of a system in a row of `smartmem bench`: its own, or otherwise the machine's CPU."""
    device = facts.get("device")
    if device:
        return _device({"device": device})
    machine = row.get("machine", {})
    return f"{machine.get('cpu', 'CPU')}, {_threads(row.get('threads') or machine.get('cores', 1))}", ""


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def kernel_times(measurements: Iterable[tuple[str, Mapping]], network: Mapping) -> list[dict]:
    """Return the times of a network's kernels, one entry for each measurement.

    Returns
    -------
    list of dict
        ``file``, ``device``, and ``kernels``: name -> ``seconds`` of all its launches in one inference, ``launches``,
        ``share`` of the sum; ``bound`` (seconds), ``bound_by``, ``of_roofline`` and ``off`` if the measurement has
        them.
    """
    known = {kernel["kernel"] for kernel in network["kernels"]}
    found = []
    for file, each in measurements:
        listed = [k for k in each.get("kernels") or () if isinstance(k, dict) and k.get("seconds") is not None]
        mine = sum(k["kernel"] in known for k in listed)
        # A model compiled for another target shares only few kernels.
        if _model(file, each, [network]) != network["name"] or mine <= len(listed) / 2:
            continue
        total = sum(k["seconds"] for k in listed) or 1.0
        times = {k["kernel"]: _time(k, total) for k in listed}
        found.append({"file": file, "device": _device(each)[0], "total": total, "kernels": times})
    return found


def machine_codes(measurements: Iterable[tuple[str, Mapping]], network: Mapping) -> list[dict]:
    """Return what a compiler makes of a network's kernels, one entry for each file that says it.

    Returns
    -------
    list of dict
        ``file``, ``mesa`` (the version), and ``kernels``: name -> ``registers``, ``waves``, ``limited_by``,
        ``scratch``, ``instructions`` and ``issue_seconds``.
    """
    known, found = {kernel["kernel"] for kernel in network["kernels"]}, []
    for file, each in measurements:
        listed = [k for k in each.get("kernels") or () if isinstance(k, dict) and k.get("machine_code")]
        mine = {k["kernel"]: k["machine_code"] for k in listed if k["kernel"] in known}
        if _model(file, each, [network]) == network["name"] and len(mine) > len(listed) / 2:
            found.append({"file": file, "mesa": each.get("mesa") or "", "kernels": mine})
    return found


def _time(kernel: Mapping, total: float) -> dict:
    bounds = {name: kernel.get(name) for name in ("bound_by", "of_roofline", "off")}
    bounds["bound"] = kernel.get("bound_seconds")
    return {
        "seconds": kernel["seconds"],
        "launches": kernel.get("launches"),
        "share": kernel["seconds"] / total,
        **{name: value for name, value in bounds.items() if value is not None},
    }


def ablations(rows: Iterable[tuple[str, Mapping]]) -> list[dict]:
    """Return the figures after each technique is added, network by network.

    Returns
    -------
    list of dict
        ``file``, ``model`` and ``steps``: ``added`` (None for the first), ``kernels``, ``layout_kernels``,
        ``activations`` (bytes) and ``median`` (ms).
    """
    return [
        {"file": file, "model": row.get("name") or row["model"], "steps": _steps(row["ablation"], row["systems"])}
        for file, row in rows
        if row.get("ablation")
    ]


def _steps(steps: Sequence[Mapping], systems: Mapping) -> list[dict]:
    return [
        {
            "added": step["added"],
            "kernels": facts.get("kernels"),
            "layout_kernels": facts.get("layout_kernels"),
            "activations": activations(facts),
            "median": latency(facts),
        }
        for step in steps
        for facts in [systems.get(step["system"], {})]
    ]


def winner_names(models: Iterable[tuple[str, Mapping, Mapping]]) -> dict[float, str]:
    """Return seconds of a winner of tuning, which identify it -> the kernel that was compiled with it."""
    tunings = [manifest.get("tuning") or {} for _, manifest, _ in models]
    return {gain["seconds"]: kernel for each in tunings for kernel, gain in each.get("gains", {}).items()}
