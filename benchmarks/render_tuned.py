#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn benchmarks/tuned_*.json into the table of docs/tuning.md: networks untuned, tuned by each strategy, and others.

make bench-tuned bench-tuned-gpu             # measure, and write the table
python benchmarks/render_tuned.py            # write it
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from render import table

from smartmem_tvm.bench.columns import geometric_mean, latency
from smartmem_tvm.bench.results import read, write_part

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "tuning.md"
FILES = [HERE / f"tuned_{name}.json" for name in ("1", "4", "avx512_1", "avx512_4", "h100")]
BEGIN, END = "<!-- networks -->\n", "<!-- /networks -->"
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
    return "\n\n".join(_figures(list(read(path).values())) for path in FILES if path.exists())


def _figures(rows: Sequence[dict]) -> str:
    title = f"{_device(rows[0])}, {_place(rows[0])}:"
    return "\n\n".join([title, table(TITLES, [_line(row) for row in rows]), f"{_means(rows)} {_where(rows)}"])


def _line(row: dict) -> list[str]:
    times = [_milliseconds(row, start) for start in (UNTUNED, EVOLUTIONARY, GENETIC)]
    tuning = row["systems"][GENETIC].get("tuning", {"tuned": 0, "kernels": 0})
    ratios = ", ".join(f"{OTHERS[name]} {each:.2f}x" for name, each in _against(row).items())
    return [row["name"], *map(_text, times), f"{tuning['tuned']} of {tuning['kernels']}", ratios]


def _milliseconds(row: dict, start: str) -> float | None:
    """Of the system whose name begins so; None where its records are of other networks."""
    facts = next((facts for name, facts in row["systems"].items() if name.startswith(start)), {})
    tuning = facts.get("tuning", {})
    tried = start != EVOLUTIONARY or tuning.get("runs") or tuning.get("left_out")
    return latency(facts) if tried else None


def _text(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.3g}"


def _against(row: dict) -> dict[str, float]:
    """Our tuned milliseconds over those of each other system."""
    ours = _milliseconds(row, GENETIC)
    times = {name: latency(row["systems"].get(name, {})) for name in OTHERS}
    return {name: ours / each for name, each in times.items() if each}


def _place(row: dict) -> str:
    threads = row["threads"]
    return row["target"] if row["target"] != "cpu" else f"{threads} thread{'s' * (threads > 1)}"


def _means(rows: Sequence[dict]) -> str:
    """Geometric means of ours over the systems that all rows have."""
    ratios = [_against(row) for row in rows]
    known = [name for name in OTHERS if all(name in each for each in ratios)]
    tuned = geometric_mean([_milliseconds(row, GENETIC) / _milliseconds(row, UNTUNED) for row in rows])
    means = [f"{OTHERS[name]} {geometric_mean([each[name] for each in ratios]):.2f}x" for name in known]
    return f"Geometric means of {len(rows)} networks: ours over untuned {tuned:.2f}x, over " + (
        f"{', over '.join(means)}."
    )


def _where(rows: Sequence[dict]) -> str:
    places = dict.fromkeys(
        f"{row['machine']['os']}; apache-tvm {row['machine']['apache-tvm']}; {row['date']}" for row in rows
    )
    return f"{', and '.join(places)}."


def _device(row: dict) -> str:
    there = row["machine"].get("devices", {}).get(row["target"], {})
    return there.get("name") or row["machine"]["cpu"]


def main() -> None:
    """Write the table."""
    write_part(PAGE, BEGIN, figures() + "\n", END)


if __name__ == "__main__":
    main()
