#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the committed results into the pages that show them.

python benchmarks/render.py             # all pages
python benchmarks/render.py gpu cpu     # docs/gpu.md and docs/cpu.md
"""

from __future__ import annotations

import argparse

from pages import (
    aarch64_tiles,
    accesses,
    accuracy,
    adreno,
    audit,
    chains,
    compile_time,
    contrib_operators,
    counters,
    gpu,
    gpu_audit,
    layout_plans,
    layouts,
    machine,
    memory_budget,
    memory_plan,
    opencl,
    opencl_cuda,
    opencl_recorded,
    operator_speed,
    overview,
    peers,
    precision,
    resident_memory,
    shapes,
    swin_block,
    textures,
    throughput,
    torch_doors,
    tuned,
    tuning,
    wild,
)
from rendering import Part, content, rows

from smartmem_tvm.tools.bench.results import read

PAGES = {
    "readme": (
        Part("README.md", "figures", lambda: overview.short(read(overview.RESULTS))),
        Part("docs/index.md", "figures", lambda: overview.short(read(overview.RESULTS))),
        Part("docs/figures.md", "figures", lambda: overview.overview(read(overview.RESULTS))),
        Part("benchmarks/README.md", "", lambda: overview.page(read(overview.RESULTS), read(overview.ABLATION))),
    ),
    "accuracy": (Part("docs/accuracy.md", "", accuracy.page),),
    "adreno": (Part("docs/adreno.md", "networks", adreno.page),),
    "audit": (
        Part("docs/audit.md", "audit", audit.figures),
        Part("docs/audit.md", "audit avx2", audit.figures_avx2),
        Part("docs/audit.md", "audit zen5", audit.figures_zen5),
        Part("docs/audit.md", "operators", operator_speed.figures),
    ),
    "compile_time": (
        Part("docs/compile_time.md", "compile time", compile_time.page),
        Part("docs/compile_time.md", "compile time by nodes", compile_time.by_nodes),
    ),
    "cpu": (
        Part("docs/cpu.md", "peers", peers.figures),
        Part("docs/cpu.md", "throughput", throughput.figures),
        Part("docs/cpu.md", "shapes", lambda: shapes.page(content(shapes.RESULTS))),
        Part("docs/cpu.md", "aarch64 tiles", aarch64_tiles.page),
        Part("docs/cpu.md", "machine", machine.page),
    ),
    "frontend": (
        Part("docs/frontend.md", "torch doors", torch_doors.figures),
        Part("docs/frontend.md", "contrib", contrib_operators.page),
    ),
    "gpu": (
        Part("docs/gpu.md", "gpu figures", lambda: gpu.page(rows(gpu.RESULTS))),
        Part("docs/gpu.md", "gpu audit", gpu_audit.page),
        Part("docs/gpu.md", "chains", chains.page),
    ),
    "memory_budget": (
        Part("docs/memory_budget.md", "memory budget", memory_budget.latencies),
        Part("docs/memory_budget.md", "memory budget costs", memory_budget.costs),
    ),
    "layout_plans": (
        Part("docs/layout_plans.md", "layout plans", layout_plans.figures),
        Part("docs/layout_plans.md", "layout plans on cuda", layout_plans.figures_on_cuda),
    ),
    "layouts": tuple(Part("docs/layouts.md", mark, make) for mark, make in layouts.SECTIONS.items()),
    "memory_accesses": (
        Part("docs/memory_accesses.md", "accesses", lambda: accesses.page(content(accesses.RESULTS)["networks"])),
        Part("docs/memory_accesses.md", "counters", lambda: counters.page(content(counters.RESULTS))),
    ),
    "memory_plan": (
        Part("docs/memory_plan.md", "memory plan", memory_plan.figures),
        Part("docs/memory_plan.md", "resident memory", resident_memory.figures),
    ),
    "opencl": (
        Part("docs/opencl.md", "opencl figures", opencl.page),
        Part("docs/opencl.md", "opencl and cuda", opencl_cuda.page),
        Part("docs/opencl.md", "recorded launches", opencl_recorded.page),
    ),
    "precision": (Part("docs/precision.md", "", precision.page),),
    "textures": (Part("docs/textures.md", "texture figures", lambda: textures.page(rows(textures.RESULTS))),),
    "tuning": (
        Part("docs/tuning.md", "networks", tuned.figures),
        Part("docs/tuning.md", "strategies", tuning.figures),
    ),
    "wild": (Part("docs/wild.md", "wild", wild.figures),),
}
"""What the command calls a page -> its parts."""
CHARTS = {
    "compile_time": compile_time.draw_chart,
    "memory_accesses": accesses.draw_chart,
    "memory_budget": memory_budget.draw_chart,
    "readme": swin_block.draw_chart,
}


def main() -> None:
    """Write pages, and the charts that they show."""
    parser = argparse.ArgumentParser(description="Write the committed results into the pages that show them.")
    parser.add_argument("pages", metavar="PAGE", nargs="*", help=f"{', '.join(PAGES)} (default: all)")
    chosen = parser.parse_args().pages or list(PAGES)
    if unknown := [name for name in chosen if name not in PAGES]:
        parser.error(f"there is no page {unknown[0]}; there are {', '.join(PAGES)}")
    for name in chosen:
        if name in CHARTS:
            CHARTS[name]()
        for part in PAGES[name]:
            part.write()


if __name__ == "__main__":
    main()
