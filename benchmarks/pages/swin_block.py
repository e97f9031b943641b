# SPDX-License-Identifier: Apache-2.0
"""The picture of README.md and docs/index.md: the kernels of one block of Swin-T before and after, from swin_block.py.

Written as text, with a style for light and for dark: GitHub and the site both show a picture in the reader's colours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from rendering import HERE, content

from smartmem_tvm.tools.bench.results import write

RESULTS = "swin_block.json"
PICTURE = HERE / "swin_block.svg"
TITLE = "The kernels of one block of Swin-T: with TVM's default passes, and with smartmem_tvm"
WIDTH, BOX, ROW, TOP, MARGIN, GAP = 800, 376, 26, 74, 16, 16
STYLE = """\
  <style>
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-size: 16px; font-weight: 600 }
    .note { font-size: 11.5px; fill: #59636e }
    .page { fill: #ffffff }
    .compute { fill: #d7e8f7; stroke: #0072b2 }
    .layout { fill: #fbe3cf; stroke: #d55e00 }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc }
      .note { fill: #9198a1 }
      .page { fill: #0d1117 }
      .compute { fill: #10304a; stroke: #56b4e9 }
      .layout { fill: #4a2a10; stroke: #e69f00 }
    }
  </style>"""
LAYOUT = {
    "strided_slice": "slice",
    "concatenate": "concat",
    **{name: name for name in ("pad", "reshape", "squeeze", "transpose")},
}
"""Layout operators in names of kernels, and what the picture calls them."""


def operators(kernel: str) -> list[str]:
    """What a kernel's name says that it is made of, in order; layout operators once."""
    names = re.sub(r"(strided_slice|layer_norm)|_", lambda each: each[1] or " ", kernel.removeprefix("fused_"))
    plain = [re.sub(r"\d+$", "", each) for each in names.split()]
    kept = (each for place, each in enumerate(plain) if each not in LAYOUT or each not in plain[:place])
    return [LAYOUT.get(each, each.replace("_", " ")) for each in kept]


def picture(found: dict) -> str:
    """The whole file."""
    theirs, ours = found["tvm"], found["ours"]
    moving = sum(each["layout"] for each in theirs)
    before = f"TVM: {len(theirs)} kernels, {moving} only move data"
    after = f"smartmem_tvm: {len(ours)} kernels, none does"
    height = TOP + ROW * len(theirs) + MARGIN
    right = WIDTH - MARGIN - BOX
    each_row = (ROW * len(theirs) + 4 - GAP * (len(ours) - 1)) / len(ours) + GAP
    size = f'viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(TITLE)}">',
        STYLE,
        f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        *_heading(MARGIN, before, "orange: reads a tensor, permutes it, writes it; computes nothing"),
        *_heading(right, after, "layout operators are index arithmetic inside the kernels"),
    ]
    for place, each in enumerate(theirs):
        kind = "layout" if each["layout"] else "compute"
        lines += _box(MARGIN, TOP + ROW * place, ROW - 4, kind, [", ".join(operators(each["name"]))])
    for place, each in enumerate(ours):
        count = each["through"]
        inside = [f"{count} layout operator{'s' * (count > 1)} inside"] if count else []
        texts = [", ".join(operators(each["name"])), *inside]
        lines += _box(right, TOP + each_row * place, each_row - GAP, "compute", texts)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _heading(x: float, title: str, note: str) -> list[str]:
    return [
        f'  <text class="title" x="{x}" y="34">{escape(title)}</text>',
        f'  <text class="note" x="{x}" y="56">{escape(note)}</text>',
    ]


def _box(x: float, y: float, height: float, kind: str, texts: Sequence[str]) -> list[str]:
    middle = y + height / 2 + 4.5 - 9 * (len(texts) - 1)
    lines = [f'  <rect class="{kind}" x="{x}" y="{y:.1f}" width="{BOX}" height="{height:.1f}" rx="4"/>']
    for place, text in enumerate(texts):
        style = ' class="note"' if place else ""
        lines.append(f'  <text{style} x="{x + 10}" y="{middle + 18 * place:.1f}">{escape(text)}</text>')
    return lines


def draw_chart() -> None:
    """Write the picture."""
    write(PICTURE, picture(content(RESULTS)))
