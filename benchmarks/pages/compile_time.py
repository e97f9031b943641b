# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/compile_time.md and the chart that it shows, of the results of compile_time.py."""

from __future__ import annotations

from pathlib import Path

from rendering import HERE, chart, content, save, table

CHART = HERE / "compile_time.svg"
NODES = "compile_nodes.json"
FILES = {"CPU": "compile_time.json", "CUDA": "compile_time_cuda.json"}
# From the bottom of the chart to its top, as told apart by colour-blind readers too (Okabe and Ito): what is named,
# and the phases in it.
GROUPS = {
    "imports, model read": ("#bbbbbb", ("imports", "model read")),
    "our graph passes": (
        "#0072b2",
        ("mend", "canonicalize", "rewrite", "merge_projections", "legalize", "eliminate", "fuse", "fuse_attention"),
    ),
    "our schedules": ("#56b4e9", ("schedule", "lower", "plan_memory", "cuda_graph", "finish")),
    "TVM: kernels lowered": ("#e69f00", ("TVM: kernels lowered",)),
    "TVM: machine code": ("#d55e00", ("TVM: machine code",)),
}


def total(network: dict) -> float:
    """Seconds of all phases."""
    return sum(network["seconds"].values())


def grouped(network: dict) -> list[float]:
    """Seconds of each of `GROUPS`; a phase that is in none belongs to our graph passes."""
    known = {phase: name for name, (_, phases) in GROUPS.items() for phase in phases}
    seconds = dict.fromkeys(GROUPS, 0.0)
    for phase, each in network["seconds"].items():
        seconds[known.get(phase, "our graph passes")] += each
    return list(seconds.values())


def figures(found: dict) -> str:
    """One row for each phase, one column for each depth."""
    networks = found["networks"]
    titles = ("seconds", *(f"{each['blocks']} blocks" for each in networks), "growth")
    lines = []
    for name in networks[0]["seconds"]:
        values = [each["seconds"][name] for each in networks]
        lines.append((name, *(f"{value:.2f}" for value in values), _growth(values)))
    totals = [total(each) for each in networks]
    lines.append(("**all**", *(f"**{value:.1f}**" for value in totals), _growth(totals)))
    counts = [("kernels of one inference", "kernels"), ("of which different", "functions")]
    lines += [(name, *(each[key] for each in networks), _growth([e[key] for e in networks])) for name, key in counts]
    return f"{table(titles, lines)}\n\n{where(found)}"


def _growth(values: list) -> str:
    return f"{values[-1] / values[0]:.1f}x"


def where(found: dict) -> str:
    """Machine, versions and date."""
    machine = found["machine"]
    return (
        f"Medians of {found['runs']} processes for each network, in turns, on {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['os']}; Python {machine['python']}, apache-tvm {machine['apache-tvm']}; "
        f"{found['date']}."
    )


def draw(found: dict, path: Path) -> None:
    """Seconds over depth, the groups of phases stacked."""
    networks = found["networks"]
    blocks = [each["blocks"] for each in networks]
    stacks = list(zip(*map(grouped, networks)))
    figure = chart((6.5, 4.0), "compile time")
    axes = figure.subplots()
    axes.stackplot(blocks, stacks, labels=list(GROUPS), colors=[color for color, _ in GROUPS.values()])
    for depth, each in zip(blocks, networks):
        axes.annotate(f"{total(each):.1f} s", (depth, total(each)), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(blocks)
    axes.set_xlim(blocks[0] - 3, blocks[-1] + 3)
    axes.set_ylim(0, 1.25 * max(map(total, networks)))
    axes.set_xlabel("blocks of Swin (Swin-T has 12)")
    axes.set_ylabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", frameon=False, fontsize=9)
    save(figure, path)


def draw_chart() -> None:
    """Draw what was measured on the CPU."""
    draw(content(FILES["CPU"]), CHART)


def page() -> str:
    """The tables of every target that was measured."""
    parts = ["![Compile time over depth](../benchmarks/compile_time.svg)"]
    for title, name in FILES.items():
        if (HERE / name).exists():
            parts += [f"### {title}", figures(content(name))]
    return "\n\n".join(parts)


def by_nodes() -> str:
    """One row for each network of compile_nodes.py: milliseconds of each phase for a node."""
    found = content(NODES)
    networks = found["networks"]
    phases = list(dict.fromkeys(phase for each in networks.values() for phase in each["seconds"]))
    shown = [name for name in phases if any(per_node(each, name) >= 0.1 for each in networks.values())]
    lines = [
        (
            name,
            each["nodes"],
            each["kernels"],
            f"**{per_node(each):.1f}**",
            *(f"{per_node(each, p):.2f}" for p in shown),
        )
        for name, each in sorted(networks.items(), key=lambda item: (item[0].split()[0], item[1]["nodes"]))
    ]
    titles = ("ms of the processor for a node", "nodes", "kernels", "all", *shown)
    machine, dates = found["machine"], sorted({each["date"] for each in networks.values()})
    where_ = f"{machine['cpu']}, {machine['os']}; apache-tvm {machine['apache-tvm']}; {', '.join(dates)}."
    return f"{table(titles, lines)}\n\nOne process for each network, on {where_}"


def per_node(network: dict, phase: str | None = None) -> float:
    """Milliseconds of a phase, or of all, for each node."""
    seconds = network["seconds"]
    return 1000 * (sum(seconds.values()) if phase is None else seconds.get(phase, 0.0)) / network["nodes"]
