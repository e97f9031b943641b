# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/gpu.md, of what gpu_audit.py and half_kernels.py measured on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rendering import content, figure, mean_of_known, table

RESULTS, KERNELS = "gpu_audit.json", "half_kernels.json"
TITLES = ("network", "ours float32", "torch float32", "ours / torch", "ours half", "torch half", "ours / torch")
TITLES += ("half / float32", "error, half: ours", "torch")
_UNIT = "{:.3f}"


def page() -> str:
    """Networks in both precisions beside torch's best mode, then single kernels."""
    found = content(RESULTS)["networks"]
    return "\n\n".join((networks(found), kernels(content(KERNELS))))


def best(row: Mapping, precision: str) -> float | None:
    """Milliseconds of the fastest of torch's modes that were measured."""
    times = row.get("milliseconds", {})
    return min((each for name, each in times.items() if name.startswith(f"torch {precision}:")), default=None)


def times(row: Mapping) -> tuple[float | None, ...]:
    """(ours, torch's best) in float32, then in half."""
    mine = [row.get("milliseconds", {}).get(f"ours {precision}") for precision in ("float32", "half")]
    return mine[0], best(row, "float32"), mine[1], best(row, "half")


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def networks(found: Mapping[str, Mapping]) -> str:
    """A line for each network and batch, the means, and what failed."""
    measured = {name: found[name] for name in sorted(found, key=_batch) if "error" not in found[name]}
    batches = sorted(set(map(_batch, measured)))
    said = [_means(batch, [row for name, row in measured.items() if name.endswith(f"@{batch}")]) for batch in batches]
    failed = [(name, row["error"]) for name, row in found.items() if "error" in row]
    for name, row in measured.items():
        failed += [(f"{name}: {system}", why) for system, why in row.get("failed", {}).items()]
    parts = [table(TITLES, [_line(name, row) for name, row in measured.items()])]
    parts.append("Geometric means; the batch is what stands behind the @:")
    parts.append("\n".join(said))
    parts += [table(("not measured", "why"), failed)] if failed else []
    return "\n\n".join((*parts, _source(measured)))


def _batch(name: str) -> int:
    return int(name.split("@")[1])


def _means(batch: int, rows: list[Mapping]) -> str:
    all_times = [times(row) for row in rows]
    means = [
        ("float32 over torch's", [_over(a, b) for a, b, _, _ in all_times]),
        ("half over torch's", [_over(c, d) for _, _, c, d in all_times]),
        ("half over our own float32", [_over(c, a) for a, _, c, _ in all_times]),
        ("torch's max-autotune over its reduce-overhead, half,", [_of_search(row["milliseconds"]) for row in rows]),
    ]
    known = [(name, each) for name, each in means if any(each)]
    said = "; ".join(f"{name} {mean_of_known(each, '{:.2f}x')} (worst {_worst(each)})" for name, each in known)
    return f"- batch {batch}, {len(rows)} networks: {said}"


def _of_search(times: Mapping[str, float]) -> float | None:
    return _over(*(times.get(f"torch half:{mode}") for mode in ("max-autotune", "reduce-overhead")))


def _worst(ratios: Iterable[float | None]) -> str:
    return figure(max((each for each in ratios if each), default=None))


def _line(name: str, row: Mapping) -> tuple:
    single, torch_single, half, torch_half = times(row)
    errors = (figure(row["errors"].get(f"{who} half"), "{:.1e}") for who in ("ours", "torch"))
    ms = [figure(each, _UNIT) for each in (single, torch_single, half, torch_half)]
    ratios = [figure(each) for each in (_over(single, torch_single), _over(half, torch_half), _over(half, single))]
    return (name, *ms[:2], ratios[0], *ms[2:], *ratios[1:], *errors)


def _source(rows: Mapping[str, Mapping]) -> str:
    places = sorted({f"{row['device']}, torch {row['torch']}, {row['date']}" for row in rows.values()})
    short = [name for name, row in rows.items() if row.get("tf32_convolutions")]
    note = f" torch's float32 convolutions were in TF32, its default, in {', '.join(short)}." if short else ""
    return f"Milliseconds, medians of runs in turns; {'; '.join(places)}.{note}"


def kernels(found: Mapping) -> str:
    """A line for each kernel and type."""
    lines = [
        (
            f"{row['kernel']} {' x '.join(map(str, row['shape']))}",
            row["type"],
            *(f"{row['ms'][who] * 1e3:.1f}" for who in ("ours", "torch")),
            *(figure(row.get("tflops", {}).get(who), "{:.0f}") for who in ("ours", "torch")),
            f"{row['ms']['torch'] / row['ms']['ours']:.0%}",
            f"{row['error']:.1e}",
        )
        for row in found["rows"]
    ]
    titles = ("kernel", "type", "ours, us", "torch, us", "ours, TFLOP/s", "torch", "of torch's speed", "error")
    where = f"{found['device']}, torch {found['torch']}, {found['date']}"
    return f"{table(titles, lines)}\n\nProducts beside torch.matmul (cuBLAS), attention beside torch's; {where}."
