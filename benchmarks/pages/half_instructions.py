# SPDX-License-Identifier: Apache-2.0
"""The part of docs/precision.md on kernels in half arithmetic, of what half_instructions.py counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from half_instructions import MOST, RESULTS
from rendering import content, dates, table

_TEXT = """## Kernels in half arithmetic

    python benchmarks/half_instructions.py       # any machine with clang; no phone is asked
    python benchmarks/render.py precision

Every kernel in `--precision half` is compiled by clang to LLVM's IR, and instructions are counted there; a vector of
eight halves counts as eight. *Loops of products* are the innermost loops of matmuls, convolutions and attention (the
whole kernel, where all of its loops are written out). In them

- factors, products and sums of a few terms are halves, written for vectors of four or eight;
- each of these sums is widened once and added to a float32 one. Nothing else is converted, and nothing is rounded: no
  half goes back and forth. *Terms for each conversion* says how long these sums are;
- what is rounded is rounded behind the loop, where a sum is complete. Kernels that are written out whole (attention)
  have that in the count, and the statistics of their rows.

Rows (norms, softmax) take their statistics in float32, so each number is widened once when it is read, and rounded once
when it is stored; where it comes from a texture, the texture unit does the former.
"""
_MOVED = """
How many halves of tensors in memory loads and stores move at once, in percent of all that the code moves. A texel has
four, 8 bytes; eight in a buffer are 16 bytes. One by one move those whose neighbours belong to other threads: rows
whose length is no multiple of four (the 49 keys of a window), results that are stored transposed, padded windows.
"""
_ACCESSES = """
The [model of memory accesses](memory_accesses.md), halves beside float32. The goal is {most} times; bytes from and to
memory keep it. A line of 64 bytes has 2 rows of 2 texels of float32 numbers, or 2 rows of 4 of halves, as in images of
Adreno 6xx. Neighbouring threads are given texels of one line: rows of a product that are results of several threads,
the terms of weights, several rows of a norm, and the columns of an image down which a window slides.
"""
_MISSED = """
These kernels miss the goal for lines, on adreno-740:

- Images of 14 and 7 columns, no multiple of four (Swin-T, ConvNeXt-T, ResNeXt-50): four neighbours then lie in two
  lines as often as in one, where two texels of float32 numbers always lie in one at 14 columns.
- Grouped convolutions whose results go to a buffer (ResNeXt-50, those of 56 x 56): the product that reads them takes
  eight halves at once, and the model of the device expects that to be faster. Neighbouring threads have neighbouring
  groups there, and each reads weights from a line of its own.
- Products that read a buffer along the terms: of 16 terms at a time halves are half of a line. In float32 the same
  tensor is an image, of which lines are used as a whole.
- The bias of attention in windows of 49 keys (Swin-T), which is read number by number: as many lines in both.
- The input of the model, which is float32 in both.

ConvNeXt-T and ResNeXt-50 ask for fewer lines in either than when all windows slid along rows (10.63 and 11.98 M in
half, 18.15 and 17.87 M in float32), most of all in float32. By the model of times all their kernels' accesses take 3.98
and 4.03 ms in half, 8.02 and 7.42 ms in float32: 0.50x and 0.54x.
"""
_NOT_USED = """
Phones have instructions that these kernels do not use:

- `dot` of four halves: it adds four terms as halves and takes a conversion for every four products. The loops above add
  many more before they convert, and a number that is read serves several sums. The dot products of Adreno's and Mali's
  extensions are of bytes.
- Reductions of sub-groups (`sub_group_reduce_add`): OpenCL C 1.2, which programs are built as, does not declare them,
  and TVM's generator writes the pragmas of `cl_khr_fp16`, `cl_khr_fp64` and atomics, not of `cl_khr_subgroups`. How
  many threads make a sub-group the phone's compiler decides for each kernel, so that a row cannot be laid out for it.
  Rows add up through local memory.
"""


def figures() -> str:
    """The whole part."""
    rows = content(RESULTS.name)["rows"]
    parts = (_TEXT, _products(rows), _MOVED, _moved(rows), _ACCESSES.format(most=MOST), _accesses(rows))
    return "\n".join((*parts, _MISSED, _NOT_USED, _source(rows)))


def _products(rows: Mapping[str, dict]) -> str:
    titles = ("network, device", "kernels", "loops", "operations on halves", "on floats", "to float32", "to half")
    return table((*titles, "terms for each conversion"), [(key, *_loops(row)) for key, row in rows.items()])


def loops(row: Mapping) -> Counter:
    """The loops of products of all kernels of a network together."""
    found: Counter = Counter()
    for each in row["rules"].values():
        found.update(each["products"])
    return found


def _loops(row: Mapping) -> tuple:
    found = loops(row)
    kernels = sum(each["kernels"] for each in row["rules"].values())
    each = found["half_products"] / found["widened"] if found["widened"] else 0
    numbers = (found[name] for name in ("loops", "half", "single", "widened", "rounded"))
    return (kernels, *numbers, f"{each:.1f}")


def moved(row: Mapping) -> dict[str, float]:
    """Share of the halves that move in texels, in eights, in fours, and in fewer."""
    found: Counter = Counter()
    for each in row["rules"].values():
        for kind, count in each["moved"].items():
            place, width = kind.split()
            found["texels" if place == "texels" else width if width in "84" else "fewer"] += count
    total = sum(found.values())
    return {kind: found[kind] / total for kind in ("texels", "8", "4", "fewer")}


def _moved(rows: Mapping[str, dict]) -> str:
    lines = [(key, *(f"{100 * share:.0f}" for share in moved(row).values())) for key, row in rows.items()]
    return table(("network, device", "texels", "eight", "four", "one or two"), lines)


def ratios(row: Mapping) -> tuple[float, float]:
    """Lines and bytes with halves over those in float32."""
    half, single = (row["accesses"][precision] for precision in ("half", "float32"))
    return half["lines"] / single["lines"], half["bytes"] / single["bytes"]


def _accesses(rows: Mapping[str, dict]) -> str:
    titles = ("network, device", "M lines, float32", "half", "**half / float32**")
    titles += ("MB from and to memory, float32", "half", "**half / float32**")
    return table(titles, [(key, *_access(row)) for key, row in rows.items()])


def _access(row: Mapping) -> Iterable[str]:
    for name, ratio in zip(("lines", "bytes"), ratios(row), strict=True):
        yield from (f"{row['accesses'][precision][name] / 1e6:.2f}" for precision in ("float32", "half"))
        yield f"**{ratio:.2f}x**"


def _source(rows: Mapping[str, dict]) -> str:
    return f"{content(RESULTS.name)['compiler']}; {dates(rows.values())}.\n"
