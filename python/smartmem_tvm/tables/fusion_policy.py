# SPDX-License-Identifier: Apache-2.0
"""The policy of fusion in one place: which kernels may become one, within which limits, who decides, what undoes it.

To forbid a kind of fusion, set ``allowed=False`` in its row of `FUSIONS`. The passes ask `may_fuse`, and their log has
`FORBIDDEN` as the reason. DNNFusion's Table 3 (`tables.mapping_type`) and SmartMem's Table 5 (`tables.action`) hold
within each row.
"""

from __future__ import annotations

from dataclasses import dataclass

# Limits of what a kernel may hold. They bound code and registers, and were chosen so that the networks of
# docs/compile_time.md keep their compilation times.
MOST_INPUTS = 64
"""Tensors that a fused kernel may read; those of a chain, read and write. Chosen: half of the 128 pointers for which
OpenCL guarantees room (CL_DEVICE_MAX_PARAMETER_SIZE is 1024 bytes or more)."""
MOST_LOADS = 32
"""Loads for one element of a result. Chosen: twice the 16 vector registers of AVX2, and as many as the 32 of AArch64,
as a few spills cost less than a pass over memory."""
MOST_COPIED_LOADS = 32
"""Loads in all copies of an inlined value together; with more, it keeps a stage of its own. Chosen, as `MOST_LOADS`."""
MOST_CALLS = 4
"""Transcendental calls (exp, erf) for one element, in element-wise stages. Chosen: a call becomes a polynomial in which
its argument occurs many times, so the code of nested calls multiplies."""
MOST_DIVISIONS = 8
"""Integer divisions and remainders in the index of one element. Chosen: the index of a chain of reshapes grows with
every step, and with more than these it is cheaper to store the tensor; Swin, with its rolled windows, has 6."""
MOST_NESTED = 4
"""Levels of loads, each in the index of the next. Each level multiplies TVM's time by ten: 1.4 s of code generation for
five levels, measured on an Intel Xeon, 2026-11-27."""
MOST_LOCAL_BYTES = 128 * 1024
"""Bytes of an intermediate result that one element of a result needs at once. Chosen: half of a small second-level
cache (256 KiB)."""
MOST_MEMBERS = 40
"""Kernels that `rows` fuses into one. Norms and softmax have ten at most. The time to fuse and to schedule them grows
with the cube of their number: 21 steps of an LSTM took minutes, 2026-11-21."""
LEAST_CHAIN_KERNELS = 8
"""Least number of kernels of a chain, each of which waits for the one before. Chosen, not measured: a shorter chain
saves few launches."""
MOST_WRITTEN_OUT = 160
"""Stages of a chain of which code is emitted, after repeated steps have become a loop. Chosen: a GPU's compiler takes
seconds for so many."""

# What repeated work may cost.
CHEAP_OPERATIONS = 8
"""Operations (`analysis.classify.cost`) for one element of a value, up to which it may be computed again. Chosen: they
take about as long as a store and a load."""
MOST_REPEATED = 9 / 8
"""Evaluations of each element of a value, on average, that still count as one: of index maps that overlap a little, as
windows do in their halos. Chosen, not measured."""
LAUNCH_BYTES = 64 * 1024
"""Bytes of memory traffic that count as much as a launch, when recomputing is weighed against storing. Chosen: they
take 2 to 7 microseconds at the 10 to 30 GB/s of one core."""

# What prices (`analysis.fusion_price`) decide with.
PRICE_MARGIN = 1.25
"""A fusion is refused if the price of the fused kernel is more than this many times that of its parts. Most predicted
ratios are within this factor of the measured ones (table of docs/design.md), and a fused kernel saves the memory of its
intermediate results."""
UNPACKED_CYCLES = 5.0
"""Cycles for each element of a weight that several sums read, and that is then not packed. Measured with a gated linear
unit on a Xeon with AVX-512: 4.9 cycles for 128 x 512 by 512 x 2 x 1408, and more for larger ones."""

# Rows of attention and of layers with a single row, on a CPU.
SINGLE_ROW_BYTES = 2 * 1024 * 1024
"""Bytes of a weight, or of the working set of a chain, up to which layers with a single row become one kernel, which
one core runs. Chosen, not measured: one launch less should gain more than other cores would."""
CHAIN_ROWS = 8
"""Rows of a chain of rows, below which it is refused (unless it has a single one), and rows in the working set of a
task. Chosen: about the height of a register tile."""
ROW_BUFFERS = 2
"""Buffers as wide as a row that a chain needs for each row: scores and their exponentials."""
ON_CHIP_BYTES = 512 * 1024
"""Bytes of the working set of a task of a chain of rows. Chosen: half of a second-level cache of 1 MiB."""

FORBIDDEN = "tables/fusion_policy.py does not allow it"


@dataclass(frozen=True)
class Fusion:
    """A kind of fusion.

    Attributes
    ----------
    name : str
        What `may_fuse` and the log call it.
    made_by : str
        The pass, as `pass_registry` names it.
    kernels : str
        Which kernels become one.
    limits : tuple of str
        The limits of this module that hold for it.
    decided_by : str
        What decides within the limits: a paper's table, a price, a profile.
    undone_by : str
        What may split the kernel again; empty if nothing does.
    allowed : bool
        Whether it is done at all.
    """

    name: str
    made_by: str
    kernels: str
    limits: tuple[str, ...]
    decided_by: str
    undone_by: str = ""
    allowed: bool = True


_ELEMENT = ("MOST_INPUTS", "MOST_LOADS", "MOST_CALLS", "MOST_DIVISIONS", "MOST_NESTED", "MOST_LOCAL_BYTES")
_RUNS = "rules that take several stages (schedule/core/sequence.py), which schedule each run of stages by itself"

FUSIONS = (
    Fusion(
        "epilogue",
        "fuse-operators",
        "a reduction and the element-wise operator that alone reads it",
        _ELEMENT,
        "Table 3, Table 5; a price where the operator reads it through several maps; a profile for yellow cells",
        _RUNS,
    ),
    Fusion(
        "prologue",
        "fuse-operators",
        "an element-wise operator and its only reader, which evaluates each element once",
        (*_ELEMENT, "MOST_REPEATED"),
        "Table 3; a profile for yellow cells",
        "fold policies (schedule/core/fold_policies.py), by which a rule stores a stage before its reader",
    ),
    Fusion(
        "copies",
        "fuse-operators",
        "a cheap element-wise operator and each of its readers, computed again in each or in overlapping windows",
        (*_ELEMENT, "CHEAP_OPERATIONS", "MOST_REPEATED", "MOST_COPIED_LOADS", "LAUNCH_BYTES"),
        "bytes moved; a price where windows repeat it; a profile for yellow cells",
        "fold policies (schedule/core/fold_policies.py), by which a rule stores a stage before its reader",
    ),
    Fusion(
        "rows",
        "fuse-rows",
        "statistics of rows and the element-wise work on the same rows: norms, softmax",
        ("MOST_MEMBERS", "SINGLE_ROW_BYTES", "CHEAP_OPERATIONS"),
        "a price",
        _RUNS,
    ),
    Fusion(
        "attention",
        "fuse-attention",
        "a product, the statistics of its rows, and a product that sums over these rows",
        ("CHAIN_ROWS", "ROW_BUFFERS", "ON_CHIP_BYTES", "SINGLE_ROW_BYTES"),
        "the target's refusal, then a price",
    ),
    Fusion(
        "chains",
        "merge-chains",
        "small kernels of a GPU that wait for each other, step after step",
        ("LEAST_CHAIN_KERNELS", "MOST_WRITTEN_OUT", "MOST_INPUTS"),
        "cycles beside those of a launch (analysis/chain_cost.py)",
    ),
)
"""All kinds. Elimination of layout operators (SmartMem's Table 5) is no fusion: it leaves no work behind."""

_BY_NAME = {each.name: each for each in FUSIONS}


def may_fuse(name: str) -> bool:
    """Whether a kind of fusion, by its name in `FUSIONS`, is done at all."""
    return _BY_NAME[name].allowed
