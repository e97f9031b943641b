# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/audit.md, of what audit.py found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from audit_list import Network, networks
from audit_rows import OTHERS, REFERENCE, is_right, is_undecided, ratio, ratio_of_faster
from rendering import HERE, dates, figure, host, mean_of_known, places, table, threads, versions

from smartmem_tvm.tools.bench.results import read

RESULTS, AVX2, ZEN5 = "audit.json", "audit_avx2.json", "audit_zen5.json"
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
TITLES = ("network", "made as", "right", "kernels", "layout", "memory", "compile, s", "ms", "/ ONNX Runtime")
TITLES += ("/ OpenVINO", "slow kernels", "all cores")
LIMIT = 1.2
"""Times the faster of the others: a network above it is one to be mended."""
SHARE = 0.03
"""Of a network's time: kernels far from their roofline that take more are listed."""
SLOW_TITLES = ("kernel", "network", "rule", "of the time", "of the roofline", "bound by", "why")

Row = Mapping


def figures() -> str:
    """What is committed."""
    return page(networks(), read(HERE / RESULTS))


def figures_avx2() -> str:
    """The same of another machine."""
    return page(networks(), read(HERE / AVX2))


def figures_zen5() -> str:
    """Networks of many kinds on a third machine."""
    return page(networks(), read(HERE / ZEN5))


def page(known: Mapping[str, Network], rows: Mapping[str, Row]) -> str:
    """What was found in all, a table for each family, and what failed."""
    listed = [rows[name] for name in known if name in rows]
    compiled = [row for row in listed if "error" not in row]
    parts = [_counts(known, listed), *_means(compiled)]
    for family in sorted({row["family"] for row in compiled}):
        lines = [_line(row) for row in compiled if row["family"] == family]
        parts += [f"### {family[0].upper()}{family[1:]}", table(TITLES, lines)]
    return "\n\n".join((*parts, *_slow(compiled), *_failures(listed), *_conditions(compiled)))


def _counts(known: Mapping[str, Network], listed: Sequence[Row]) -> str:
    compiled = [row for row in listed if "error" not in row]
    right, undecided = sum(map(is_right, compiled)), sum(map(is_undecided, compiled))
    rounding = f", {undecided} decided by rounding" if undecided else ""
    timed = sum(ratio(row, REFERENCE) is not None for row in compiled)
    left = f"{len(known) - timed} are still to be timed, {len(known) - len(listed)} of them still to be taken"
    return (
        f"{len(listed)} of the {len(known)} networks of the table were taken: {len(compiled)} are compiled, {right} of "
        f"them right{rounding}, {len(listed) - len(compiled)} could not be exported, compiled or compared. "
        f"{timed} were timed on one thread; {left}."
    )


def _means(compiled: Sequence[Row]) -> list[str]:
    """How many times the others' time ours take, by the number of threads: in the mean, and the worst."""
    sentences = []
    for count in sorted({count for row in compiled for count in row["latency"]}, key=int):
        timed = [row for row in compiled if ratio(row, REFERENCE, count) is not None]
        means = {name: mean_of_known((ratio(row, name, count) for row in timed), "{:.2f}x") for name in OTHERS}
        text = ", ".join(f"{mean} of {NAMES[name]}'s" for name, mean in means.items() if mean)
        worst = sorted(((ratio_of_faster(row, count), row["name"]) for row in timed), reverse=True)
        above = ", ".join(f"{name} {figure(value)}" for value, name in worst if value > LIMIT) or "none"
        sentences.append(
            f"On {threads(count)} ours take {text} time (geometric means of {len(timed)} networks). "
            f"Above {LIMIT}x of the faster of the two: {above}."
        )
    return sentences + _at_the_roofline(compiled)


def _at_the_roofline(compiled: Sequence[Row]) -> list[str]:
    """How many times the others' time ours would take if each kernel were as fast as its roofline."""
    known = [row for row in compiled if row.get("of_roofline") and ratio(row, REFERENCE) is not None]
    if not known:
        return []
    bound = {
        name: mean_of_known(((ratio(row, name) or 0) * row["of_roofline"] for row in known), "{:.2f}x")
        for name in OTHERS
    }
    text = ", ".join(f"{mean} of {NAMES[name]}'s" for name, mean in bound.items() if mean)
    share = mean_of_known((row["of_roofline"] for row in known), "{:.0%}")
    return [f"Rooflines are {share} of our time on one thread: with every kernel at its own, ours would take {text}."]


def _line(row: Row) -> tuple:
    made = f"{row['package']}, {row['scale']}" if row["scale"] else row["package"]
    right = _right(row)
    memory = row["memory"]
    over = figure(memory["planned"] / memory["least"] if memory["least"] else None, "{:.3f}x")
    ours = row["latency"].get("1", {}).get("smartmem")
    times = (figure(ours and ours["median"], "{:.2f}"), *(figure(ratio(row, name)) for name in OTHERS))
    slow = figure(row.get("slow_share"), "{:.0%}")
    known = (row["name"], made, right, row["kernels"], row["layout_kernels"], over)
    return (*known, f"{sum(row['seconds'].values()):.0f}", *times, slow, _all_cores(row))


def _right(row: Row) -> str:
    if is_right(row):
        return "yes"
    if is_undecided(row):
        return f"by rounding: ONNX Runtime is {row['reference_deviation']:.0e} from itself"
    return f"**no**, {row['deviation']:.0e}" if row["deviation"] is not None else "**no**"


def _all_cores(row: Row) -> str:
    """Ours beside both others on the largest number of threads that was measured."""
    counts = [count for count in row["latency"] if int(count) > 1]
    if not counts:
        return "-"
    most = max(counts, key=int)
    return f"{' / '.join(figure(ratio(row, name, most)) for name in OTHERS)} ({most})"


def _slow(compiled: Sequence[Row]) -> list[str]:
    """Kernels that take more than four times their roofline, and a share of their network's time that counts."""
    found = [(each, row["name"]) for row in compiled for each in row.get("slow_kernels", ()) if each["share"] > SHARE]
    found.sort(key=lambda pair: -pair[0]["share"])
    lines = [
        (
            *(each["kernel"], name, each["rule"], f"{each['share']:.0%}", f"{each['of_roofline']:.2f}"),
            *(each["bound_by"], each["off"] or "-"),
        )
        for each, name in found
    ]
    title = f"### Kernels of more than {SHARE:.0%} of a network's time and four times their roofline"
    return [title, table(SLOW_TITLES, lines)] if lines else []


def _failures(listed: Iterable[Row]) -> list[str]:
    failed = [(row["name"], f"{row['stage']}: {row['error']}") for row in listed if "error" in row]
    failed += [(row["name"], each) for row in listed for each in row.get("failed", {}).values() if "error" not in row]
    failed = [(name, text.replace("|", "\\|").replace("<", "&lt;")) for name, text in failed]
    return ["### What failed", table(("network", "what it said"), failed)] if failed else []


def _conditions(compiled: Sequence[Row]) -> list[str]:
    """Where it was measured, and when."""
    found = places(compiled, lambda row: f"{host(row['machine'])}; {versions(row['machine'])}")
    others = sorted({each for row in compiled for each in row.get("versions", ())})
    return [f"{', '.join((text, *others))}; {dates(compiled)}." for text in found]
