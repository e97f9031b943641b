# SPDX-License-Identifier: Apache-2.0
"""The table of docs/tuning.md of networks: untuned, tuned by each strategy, and others (``make bench-tuned``)."""

from __future__ import annotations

from collections.abc import Sequence

from rendering import HERE, figure, milliseconds, rows, table, threads

from smartmem_tvm.tools.bench.columns import geometric_mean, latency

FILES = [f"tuned_{name}.json" for name in ("1", "4", "avx512_1", "avx512_4", "h100")]
GENETIC, UNTUNED, EVOLUTIONARY = "smartmem", "no-tuned", "tuned="
OTHERS = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "torch-eager": "torch",
    "torch-compile": "torch, compile",
    "torch-cuda-graphs": "torch, reduce-overhead",
    "torch-max-autotune": "torch, max-autotune",
}
TITLES = ("network", "untuned, ms", "evolutionary, ms", "**genetic, ms**", "kernels tuned", "ours / others")


def figures() -> str:
    """A table of each file that is there, and what it comes to."""
    return "\n\n".join(_figures(rows(name)) for name in FILES if (HERE / name).exists())


def _figures(networks: Sequence[dict]) -> str:
    title = f"{_device(networks[0])}, {_place(networks[0])}:"
    lines = table(TITLES, map(_line, networks))
    return "\n\n".join([title, lines, f"{_means(networks)} {_where(networks)}"])


def _line(row: dict) -> list[str]:
    times = [_latency(row, start) for start in (UNTUNED, EVOLUTIONARY, GENETIC)]
    tuning = row["systems"][GENETIC].get("tuning", {"tuned": 0, "kernels": 0})
    ratios = ", ".join(f"{OTHERS[name]} {each:.2f}x" for name, each in _against(row).items())
    shown = (figure(each, "{:.3g}") for each in times)
    return [row["name"], *shown, f"{tuning['tuned']} of {tuning['kernels']}", ratios]


def _latency(row: dict, start: str) -> float | None:
    """Of the system whose name begins so; None where its records are of other networks."""
    facts = next((facts for name, facts in row["systems"].items() if name.startswith(start)), {})
    tuning = facts.get("tuning", {})
    tried = start != EVOLUTIONARY or tuning.get("runs") or tuning.get("left_out")
    return latency(facts) if tried else None


def _against(row: dict) -> dict[str, float]:
    """Our tuned milliseconds over those of each other system."""
    ours = _latency(row, GENETIC)
    times = {name: milliseconds(row, name) for name in OTHERS}
    return {name: ours / each for name, each in times.items() if each}


def _place(row: dict) -> str:
    return row["target"] if row["target"] != "cpu" else threads(row["threads"])


def _means(networks: Sequence[dict]) -> str:
    """Geometric means of ours over the systems that all networks have."""
    ratios = [_against(row) for row in networks]
    known = [name for name in OTHERS if all(name in each for each in ratios)]
    tuned = geometric_mean([_latency(row, GENETIC) / _latency(row, UNTUNED) for row in networks])
    means = [f"{OTHERS[name]} {geometric_mean([each[name] for each in ratios]):.2f}x" for name in known]
    return f"Geometric means of {len(networks)} networks: ours over untuned {tuned:.2f}x, over " + (
        f"{', over '.join(means)}."
    )


def _where(networks: Sequence[dict]) -> str:
    places = dict.fromkeys(
        f"{row['machine']['os']}; apache-tvm {row['machine']['apache-tvm']}; {row['date']}" for row in networks
    )
    return f"{', and '.join(places)}."


def _device(row: dict) -> str:
    there = row["machine"].get("devices", {}).get(row["target"], {})
    return there.get("name") or row["machine"]["cpu"]
