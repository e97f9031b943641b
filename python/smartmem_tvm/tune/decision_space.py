# SPDX-License-Identifier: Apache-2.0
"""The search space of the schedule rules' decisions: genes, and the constraints between them.

There is one function for each kind of `schedule.core.decisions.decide`, by its name. Every field of a choice is a gene,
named like the value in the attribute ``smartmem.decisions``; a field that the function does not mention keeps the
rule's value. Constraints exclude kernels that would be wrong, refused or hopeless; measurements decide the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from ..schedule.core.decisions import RULE_GENE, Decision, given_values
from ..schedule.core.rivals import NUMBERED
from ..schedule.gpu.attention.chain_tile import ChainProductTile
from ..schedule.gpu.machine import FLOAT_BYTES, WARP
from ..schedule.gpu.matmul.matmul_tile import GpuTile
from ..schedule.gpu.occupancy import BlockTile
from ..schedule.gpu.window.window_tiles import ProductTile
from .decision_genes import Kind
from .genetic import Space, Value, divisors
from .rule_space import RuleSpace

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_SUMS = 128  # accumulators of a thread: with more, no register is left for operands
_WRITTEN_OUT = 2048  # multiplications in the unrolled source of a kernel: more take minutes to compile


def space_of(
    decisions: Sequence[Decision], family: str, rivals: Mapping[str, Sequence[Decision]] | None = None
) -> Space:
    """Return the search space of a kernel.

    Parameters
    ----------
    decisions : sequence of Decision
        Default decisions of its rule.
    family : str
        The rule.
    rivals : mapping, optional
        Other rules -> their default decisions. The choice of the rule becomes a gene.
    """
    alone = _space(decisions, family)
    if not rivals:
        return alone
    parts = {NUMBERED.index(family): alone}
    parts |= {NUMBERED.index(rule): _space(taken, rule) for rule, taken in rivals.items()}
    choices = given_values([each for taken in (decisions, *rivals.values()) for each in taken])
    return RuleSpace.of(RULE_GENE, parts, choices, family)


def _space(decisions: Sequence[Decision], family: str) -> Space:
    kinds = [Kind(each) for each in decisions]
    for kind in kinds:
        _KINDS.get(kind.decision.kind, _nothing)(kind)
        kind.limited_by_rule()
    facts = {f"{each.name}.{name}": int(value) for each in decisions for name, value in each.facts.items()}
    genes = tuple(gene for kind in kinds for gene in kind.all_genes())
    return Space(genes, tuple(c for kind in kinds for c in kind.constraints), family, facts)


def seed_of(
    decisions: Sequence[Decision], family: str = "", rivals: Mapping[str, Sequence[Decision]] | None = None
) -> dict[str, Value]:
    """Return the genome of the rule's default decisions."""
    every = [each for taken in (decisions, *(rivals or {}).values()) for each in taken]
    return {**({RULE_GENE: NUMBERED.index(family)} if rivals else {}), **given_values(every)}


def _nothing(_: Kind) -> None:
    """Keep the values of a decision of unknown kind."""


# -- CPU -------------------------------------------------------------------------------------------------------------


def _tasks(kind: Kind, field: str = "tasks") -> None:
    kind.number(field, (1, *(n * kind["cores"] for n in (1, 2, 4, 8, 16))))


def _register_tile(kind: Kind, height: str, width: str, columns: int) -> None:
    """Add the genes of a register tile; a tile that exceeds the registers spills, but is not wrong."""
    lanes = kind["lanes"]
    kind.number(height, range(1, 17))
    kind.number(width, (n * lanes for n in (1, 2, 3, 4, 5, 6, 8)), max(columns, lanes))
    kind.at_most(2 * kind["registers"] * lanes, height, width)


def _vectors(kind: Kind, width: str) -> None:
    """Add the gene of SIMD lanes; whole vectors must fill a row of the tile."""
    kind.number("lanes", (kind["lanes"] // 2, kind["lanes"], 2 * kind["lanes"]))
    kind.requires(lambda wide, lanes: wide % lanes == 0 or wide < lanes, width, "lanes")


def _matmul(kind: Kind) -> None:
    kind.switch("swapped")
    _register_tile(kind, "height", "width", max(kind["columns"], kind["rows"]))
    _vectors(kind, "width")
    kind.number("unroll", (1, 2, 4, 8, 16), kind["depth"])
    kind.at_most(_WRITTEN_OUT, "height", "width", "unroll")
    sides = (kind["rows"], kind["columns"])
    for parts, tile, side in (("row_parts", "height", 0), ("column_parts", "width", 1)):
        kind.number(parts, _PARTS, max(sides))
        # There is no point in more parts than tiles.
        kind.requires(
            lambda swapped, n, size, side=side: (n - 1) * size < sides[side != swapped], "swapped", parts, tile
        )
    kind.at_most(16 * kind["cores"], "row_parts", "column_parts")
    kind.switch("parallel")
    kind.switch("left_packed")
    kind.switch("right_packed")
    if "tiled" in kind.decision.facts:
        kind.switch("tiles")
    # A constant right operand is packed into panels at compile time.
    constants = (bool(kind["constant"]), bool(kind["left_constant"]))
    kind.requires(lambda swapped, packed: not (packed and constants[swapped]), "swapped", "right_packed")


def _window(kind: Kind) -> None:
    columns, lanes = kind["columns"], kind["lanes"]
    kind.number("height", range(1, 13), kind["lines"])
    kind.number("width", (n * lanes for n in (1, 2, 3, 4, 6, 8)), columns)
    kind.at_most(kind["tile_values"], "height", "width")
    _vectors(kind, "width")
    # The field only says whether the innermost loop is unrolled.
    short = kind["last"] <= kind.default("unrolled")
    kind.number("unrolled", (1,) if short else (kind["last"],), 32)
    _tasks(kind)


def _slide(kind: Kind) -> None:
    _register_tile(kind, "height", "width", kind["places"])
    kind.at_most(kind["rows"], "height")
    _vectors(kind, "width")
    kind.number("lines", divisors(kind["lines"]))
    kind.switch("written_out")
    kind.switch("parallel")


def _depthwise(kind: Kind) -> None:
    lanes, channels = kind["lanes"], kind["channels"]
    kind.number("lines", (*divisors(kind["lines"]), 4, 8, 16, 32), kind["lines"])
    kind.number("block", (n * lanes for n in (1, 2, 4, 8, 16)), channels)
    kind.number("height", range(1, 17))
    kind.number("vectors", (1, 2, 3, 4))
    kind.number("lanes", (lanes // 2, lanes, 2 * lanes))
    kind.at_most(kind["tile_values"], "height", "vectors", "lanes")
    kind.at_most(2 * kind["registers"], "height", "vectors")
    kind.switch("written_out")
    kind.requires(
        lambda *sizes: sizes[-1] == 0 or prod(sizes[:-1]) * kind["window"] <= _WRITTEN_OUT,
        "height",
        "vectors",
        "written_out",
    )
    _tasks(kind)


def _rows(kind: Kind) -> None:
    lanes = kind["lanes"]
    kind.number("vectors", (1, 2, 4, 8))
    kind.number("together", (lanes // 2, lanes, 2 * lanes, 4 * lanes), kind["beside"])
    _tasks(kind)


def _row_chain(kind: Kind) -> None:
    rows = kind["rows"]
    kind.number("length", (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, rows), rows)
    kind.at_most((1 << 20) // (FLOAT_BYTES * kind["widest"]), "length")
    kind.number("chunks", _PARTS, rows)
    kind.requires(lambda length, chunks: chunks <= -(-rows // length), "length", "chunks")
    kind.switch("parallel")


def _panel(kind: Kind) -> None:
    _register_tile(kind, "height", "width", kind["columns"])


def _elementwise(kind: Kind) -> None:
    _tasks(kind)


def _transpose(kind: Kind) -> None:
    _tasks(kind)
    kind.number("side", (4, 8, 16, 32, 64))


# -- GPU -------------------------------------------------------------------------------------------------------------


def _thread_tile(kind: Kind) -> None:
    """Add the genes of tiles that threads share evenly."""
    for side in ("rows", "columns"):
        kind.number(side, (8, 16, 32, 64, 128, 256))
        kind.number(f"thread_{side}", (1, 2, 4, 8))
        kind.requires(lambda tile, own: tile % own == 0, side, f"thread_{side}")


def _block_tile(kind: Kind, tile: type[BlockTile]) -> None:
    """Limit the threads of a thread block to at least a warp, and threads and shared memory to the target's limits."""
    most, shared = kind["threads"], kind["shared"]

    def threads(slices: int, rows: int, columns: int, down: int, across: int) -> bool:
        return WARP <= tile(rows, columns, 1, down, across, slices=slices).threads <= most

    def memory(slices: int, depth: int, rows: int, columns: int) -> bool:
        return tile(rows, columns, depth, 1, 1, slices=slices).shared_bytes <= shared

    kind.requires(threads, "slices", "rows", "columns", "thread_rows", "thread_columns")
    kind.requires(memory, "slices", "depth", "rows", "columns")


def _gpu_matmul(kind: Kind) -> None:
    _thread_tile(kind)
    kind.number("thread_columns", (1, 2, 4, 8, 16))
    kind.at_most(_MOST_SUMS, "thread_rows", "thread_columns")
    kind.number("depth", (4, 8, 16, 32, 64))
    kind.number("unroll", (1, 2, 4, 8, 16, 32), 32)
    kind.number("splits", (1, 2, 3, 4, 6, 8, 12, 16), max(1, kind["depth"] // 32))
    kind.number("slices", (1, 2, 4, 8))
    kind.number("band", (0, 1, 2, 4, 8, 16), kind["columns"] // 8)
    _block_tile(kind, GpuTile)
    kind.requires(lambda deep, slices, unroll: deep % (slices * unroll) == 0, "depth", "slices", "unroll")
    kind.at_most(_WRITTEN_OUT, "unroll", "thread_rows", "thread_columns")
    kind.at_most(max(kind["depth"], 4), "splits", "depth")
    kind.requires(lambda columns, band: band * columns < kind["columns"], "columns", "band")
    if kind["texels"]:
        kind.requires(lambda own: own % 4 == 0, "thread_columns")


def _gpu_coded(kind: Kind) -> None:
    """Add the genes of few rows and codes; the rule itself checks the limits of a thread block."""
    kind.number("columns", (16, 32, 64, 128, 256), max(16, 2 * kind["columns"]))
    kind.number("slices", (1, 2, 4, 8, 16, 32, 64), max(1, kind["turns"]))
    kind.number("words", (1, 2, 4, 8), kind["words"])


def _gpu_few_rows(kind: Kind) -> None:
    """Add the genes of few rows and numbers; the rule itself checks the limits of a thread block."""
    kind.number("columns", (4, 8, 16, 32, 64, 128, 256), max(4, 2 * kind["columns"]))
    kind.number("slices", (1, 2, 4, 8, 16, 32, 64, 128), max(1, kind["units"]))
    kind.number("steps", (1, 2, 4, 8), max(1, kind["units"]))
    kind.number("stages", (2, 3, 4, 5, 8))
    if kind["along"]:
        kind.number("own", (1, 2, 4))
    kind.requires(lambda slices, steps: slices * steps <= 2 * kind["units"], "slices", "steps")


def _gpu_over_keys(kind: Kind) -> None:
    """Add the genes of attention over keys; the rule itself checks the limits of a thread block and divisibility."""
    kind.number("rows", (1, 2, 4, 8, 16), kind["group"])
    kind.number("keys", (32, 64, 128, 256), max(32, 2 * kind["keys"]))
    kind.number("threads", (32, 64, 128, 256, 512))
    kind.number("lanes", (1, 2, 4, 8), max(1, kind["depth"]))


def _gpu_matrix(kind: Kind) -> None:
    """Add the genes of tiles of warps; the rule itself checks the limits of a thread block and divisibility."""
    kind.number("rows", (16, 32, 64, 128, 256))
    kind.number("columns", (16, 32, 48, 64, 96, 128, 192, 256))
    kind.number("depth", tuple(size // kind["bytes"] for size in (32, 64, 128, 256, 512)))
    kind.number("warp_rows", (16, 32, 64))
    kind.number("warp_columns", (16, 32, 48, 64, 96, 128, 192, 256))
    kind.number("stages", (2, 3, 4, 5, 6, 8))
    kind.number("slices", (1, 2, 4))
    kind.number("splits", (1, 2, 3, 4, 6, 8, 12, 16), max(1, kind["depth"] // 64))
    kind.number("band", (0, 1, 2, 4, 8, 16), kind["columns"] // 16)
    if kind["groups"]:
        kind.switch("group")
    kind.requires(lambda columns, band: band * columns < kind["columns"], "columns", "band")


def _gpu_matrix_attention(kind: Kind) -> None:
    """Add the genes of attention; the rule itself checks the limits of a thread block and divisibility."""
    kind.number("rows", (16, 32, 64, 128, 256), max(16, 2 * kind["rows"]))
    kind.number("warp_rows", (16, 32))
    kind.number("keys", (16, 32, 48, 64, 80, 96, 128, 208), max(16, 2 * kind["keys"]))
    kind.number("stages", (1, 2, 3, 4))
    if kind["groups"]:
        kind.switch("group")


def _gpu_window_product(kind: Kind) -> None:
    _thread_tile(kind)
    kind.number("depth", {4, 8, 12, 16, 24, 32, kind["window"], 2 * kind["window"]}, min(64, kind["depth"]))
    kind.number("slices", (1, 2, 4, 8))
    kind.number("vector", (1, 2, 4))
    _block_tile(kind, ProductTile)
    run = kind["run"]
    kind.requires(lambda own: own % run == 0, "thread_columns")
    own = ("thread_rows", "thread_columns", "slices")
    kind.requires(lambda down, across, slices: down * across % (slices * run) == 0, *own)
    kind.requires(lambda slices, deep: slices == 1 or slices * deep <= kind["depth"], "slices", "depth")


def _gpu_window_slide(kind: Kind) -> None:
    for field in ("across", "down", "rows"):
        kind.number(field, divisors(kind[field]), 16)
    kind.at_most(64 // kind["together"], "across", "down", "rows")
    _taps(kind)
    kind.at_most(_WRITTEN_OUT // kind["together"], "across", "down", "rows", "taps")


def _taps(kind: Kind) -> None:
    kind.number("taps", (1, 3, 4, 9, 16, 25, 36, 49, 64), max(1, kind["terms"]))
    kind.number("threads", (32, 64, 128, 256), kind["threads"])


def _gpu_rows(kind: Kind) -> None:
    length, most = kind["length"], kind["threads"]
    kind.number("lanes", _POWERS, min(64, 2 * kind["rows"]))
    kind.number("slices", (*_POWERS, *range(96, most, 32)), min(most, 2 * length))
    kind.at_most(most, "lanes", "slices")
    if kind["turned"]:
        kind.at_most(kind["shared"] // (2 * FLOAT_BYTES * (length | 1)), "lanes")
    elif kind["vector"] == 1 and kind["rows"] > 1:
        kind.switch("across")


def _gpu_elementwise(kind: Kind) -> None:
    if not kind["texels"]:
        kind.number("vector", (1, kind["vector"]))
    kind.number("threads", (32, 64, 128, 256, 512, 1024), kind["threads"])
    kind.number("each", (1, 2, 4, 8))


def _gpu_row_chain(kind: Kind) -> None:
    kind.number("rows", (8, 16, 32, 64))
    kind.number("threads", (64, 128, 256), kind["threads"])
    kind.requires(lambda rows, threads: threads % rows == 0, "rows", "threads")
    for number in range(kind["products"]):
        own = [f"products.{number}.{name}" for name in ("thread_rows", "thread_columns", "slices", "depth")]
        for name, options in zip(own, ((4, 8), (4, 8), (1, 2, 4, 8), (8, 16, 32)), strict=True):
            kind.number(name, options)
        kind.requires(_shares_evenly, "rows", "threads", own[0], own[2])


def _shares_evenly(rows: int, threads: int, thread_rows: int, slices: int) -> bool:
    return ChainProductTile(thread_rows, 1, slices, 1).shares_evenly(rows, threads)


_KINDS: dict[str, Callable[[Kind], None]] = {
    "matmul": _matmul,
    "window": _window,
    "slide": _slide,
    "depthwise": _depthwise,
    "rows": _rows,
    "row_chain": _row_chain,
    "panel": _panel,
    "elementwise": _elementwise,
    "transpose": _transpose,
    "gpu_matmul": _gpu_matmul,
    "gpu_coded": _gpu_coded,
    "gpu_few_rows": _gpu_few_rows,
    "gpu_over_keys": _gpu_over_keys,
    "gpu_matrix": _gpu_matrix,
    "gpu_matrix_attention": _gpu_matrix_attention,
    "gpu_window_product": _gpu_window_product,
    "gpu_window_slide": _gpu_window_slide,
    "gpu_texel_reduction": _taps,
    "gpu_rows": _gpu_rows,
    "gpu_elementwise": _gpu_elementwise,
    "gpu_row_chain": _gpu_row_chain,
}
