# SPDX-License-Identifier: Apache-2.0
"""What commands say of tuned kernels: how many there are, who tuned them, and which records do not count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import geometric_mean


def tuning_text(report: Mapping | None) -> str:
    """A report of `deploy.tuned.tuning_report` in sentences, one to a line; None is one of a folder without any."""
    return "\n".join(_sentences(report)) if report is not None else "Whether kernels are tuned is not on record."


def _sentences(report: Mapping) -> Iterator[str]:
    if report["tuned"]:
        mean = geometric_mean(each["gain"] for each in report["gains"].values())
        yield (
            f"{report['tuned']} of {report['kernels']} kernels are tuned: {mean:.2f} times as fast as untuned, by the "
            f"geometric mean of what was measured when they were tuned."
        )
    else:
        yield f"None of {report['kernels']} kernels is tuned; `smartmem tune` would search better schedules for them."
    for run in report["runs"]:
        found = [run["date"] or "no date", run["device"] or "no device"]
        found += [f"driver {run['driver']}"] if run["driver"] else []
        found += [f"on {run['threads']} threads"] if run["threads"] else []
        yield f"Tuned by strategy {run['strategy']}: {run['tuned']} ({', '.join(found)}; {run['records']})."
    for each in report["left_out"]:
        yield f"Records that do not count: of {each['kernels']}, {each['reason']}."


def decisions_text(decisions: Mapping | None) -> str:
    """The decisions of a tuned kernel, those of one kind together; None is a schedule of TVM's."""
    if decisions is None:
        return "a schedule of TVM's"
    kinds: dict[str, list[str]] = {}
    for name, value in decisions.items():
        kind, _, field = name.partition(".")
        kinds.setdefault(kind, []).append(f"{field} {value}")
    return "; ".join(f"{kind}: {', '.join(fields)}" for kind, fields in kinds.items())
