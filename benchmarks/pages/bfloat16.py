# SPDX-License-Identifier: Apache-2.0
"""The part of docs/precision.md on bfloat16 on CPUs, of what bfloat16_speed.py measured."""

from __future__ import annotations

from bfloat16_audit import RESULTS as AUDIT
from bfloat16_speed import NETWORKS, OPENVINO, OURS, RESULTS
from rendering import content, dates, figure, mean_of_known, table, threads, versions

_HEAD = """
## bfloat16 on CPUs

With `--precision bfloat16` the operands of matmuls, convolutions and attention are rounded to bfloat16, and
multiplied by the AMX units of CPUs that have them (Intel since Sapphire Rapids), on Linux. `{"kind": "llvm", "mcpu":
"sapphirerapids"}` is such a target. Tensors between kernels are bfloat16 in memory. Sums are float32, and so are
epilogues, softmax and normalisations. The weights of these products are rounded, and put into tiles, when the model
is compiled; others stay float32. An operand that is stored in bfloat16 is copied into tiles without another rounding.
Other CPUs are refused. AVX512_BF16 alone, without tiles, is not used.

Two tiles of 16 x 16 results down and two across share their operands. The product of two such tiles takes 18 cycles,
and 24 if both come from the second-level cache. So one stays in the first: it is multiplied with all of the other in
parts of 512 along the depth, sums are kept between parts, and what passes through is loaded by an instruction that
leaves the cache to the one that stays (`tileloaddt1`).

An image that windows slide over goes into tiles once for each column of a window, three times for one of 3 x 3: another
line of a window is another line of these tiles. Zeros fill the last tile of channels (32). Where that costs more than
to copy each window, as of the three channels of a first convolution, windows are copied.

These stay in float32, and `decisions` of `explain.json` says of each product why: products with a vector, and those
that would take longer, by a model of both schedules (`price`), as those of groups of few channels. The code asks Linux
for the tiles itself, with or without Python.

    make bench-bfloat16

OpenVINO takes bfloat16 by itself on such CPUs. Runs in turns, batch 1, processor time on one thread.
"""
_ERRORS = """
The largest absolute error against torch in float64, on the same weights and input, relative to the largest magnitude of
the output; *torch bfloat16* is the network with all weights and tensors in bfloat16.
"""
_CONDITION = """
OpenVINO's default is faster on ResNeXt-50. More than a quarter of our time is in grouped convolutions, which stay in
float32, and more than half in products whose images are planes: they wait for lines of memory far from each other. No
instruction for bfloat16 would multiply groups much faster: the dot product of vectors (`vdpbf16ps`) does 1.4 times
the multiplications of float32 on this processor, and groups of 4 or 8 channels fill an eighth or a quarter of a tile.
"""
_AUDIT = """
Networks drawn at random from the [audit's](audit.md), random weights, one thread, in turns: `python
benchmarks/bfloat16_audit.py`. Medians; errors as above.
"""
_SYSTEMS = (*OURS, *OPENVINO)
_AUDITED = ("ours float32", "ours bfloat16", "OpenVINO default")


def section() -> str:
    """The whole section."""
    found = content(RESULTS.name)
    counts = sorted({int(key.rpartition(", ")[2]) for key in found["rows"]})
    here = found["machine"]
    source = f"Measured on {here['cpu']}, {here['os']}; {versions(here)}; {dates(found['rows'].values())}."
    parts = [
        _HEAD,
        *(_times(found["rows"], count) for count in counts),
        _ERRORS,
        _errors(found["rows"]),
        _CONDITION,
        _AUDIT,
        _audit(content(AUDIT.name)["networks"]),
        source,
        "",
    ]
    return "\n".join(parts)


def _row(rows: dict, name: str, count: int) -> dict:
    return rows.get(f"{name}, {count}", {})


def _times(rows: dict, count: int) -> str:
    def line(system: str) -> tuple:
        return (system, *(_milliseconds(_row(rows, name, count), system) for name in NETWORKS))

    lines = [line(system) for system in _SYSTEMS]
    ratio = ("ours bfloat16 / OpenVINO default", *(_ratio(_row(rows, name, count)) for name in NETWORKS))
    return table((f"milliseconds, {threads(count)}: median (least)", *NETWORKS.values()), [*lines, ratio]) + "\n"


def _milliseconds(row: dict, system: str) -> str:
    return f"{row['ms'][system]:.1f} ({row['least_ms'][system]:.1f})" if "ms" in row else "-"


def _ratio(row: dict) -> str:
    return f"{row['ms']['ours bfloat16'] / row['ms']['OpenVINO default']:.2f}x" if "ms" in row else "-"


def _errors(rows: dict) -> str:
    first = min(int(key.rpartition(", ")[2]) for key in rows)
    systems = ("torch bfloat16", "ours bfloat16", "OpenVINO default", "ours float32")
    found = [_row(rows, name, first).get("errors", {}) for name in NETWORKS]
    lines = [(system, *(f"{each[system]:.1e}" if system in each else "-" for each in found)) for system in systems]
    return table(("error", *NETWORKS.values()), lines)


def _audit(rows: dict) -> str:
    measured = {name: row for name, row in sorted(rows.items()) if "milliseconds" in row}
    lines = [(name, *_audited(row)) for name, row in measured.items()]
    titles = ("milliseconds", *_AUDITED, "bfloat16 / float32", "bfloat16 / OpenVINO", "error: ours", "torch bfloat16")
    means = [
        f"{what}: geometric mean {mean_of_known(found, '{:.2f}x')}, largest {figure(max(filter(None, found)))}"
        for what, found in (
            ("bfloat16 over our own float32", [_over(row, "ours float32") for row in measured.values()]),
            ("over OpenVINO's default", [_over(row, "OpenVINO default") for row in measured.values()]),
        )
    ]
    failed = [(name, row["error"]) for name, row in sorted(rows.items()) if "error" in row]
    failed += [(f"{name}: {what}", why) for name, row in measured.items() for what, why in row["failed"].items()]
    missing = [table(("not measured", "why"), failed), ""] if failed else []
    return "\n".join([table(titles, lines), "", f"{len(measured)} networks; {'; '.join(means)}.", "", *missing])


def _audited(row: dict) -> tuple:
    errors = (row["errors"].get(system) for system in ("ours bfloat16", "torch bfloat16"))
    return (
        *(figure(row["milliseconds"].get(system), "{:.1f}") for system in _AUDITED),
        figure(_over(row, "ours float32")),
        figure(_over(row, "OpenVINO default")),
        *(figure(each, "{:.1e}") for each in errors),
    )


def _over(row: dict, other: str) -> float | None:
    found = row["milliseconds"]
    return found["ours bfloat16"] / found[other] if other in found else None
