# SPDX-License-Identifier: Apache-2.0
"""The processor in figures: what the model of time (`cost`) counts with, each figure once.

Cycles are those of one core. The first half describes the processor. "Measured" without more is `python
benchmarks/machine.py --json benchmarks/machine_xeon.json`: one thread of an Intel Xeon with AVX-512 and AMX, at 3.7
GHz, beside other processes, 2026-11-28. One value serves all processors, unless its text says otherwise, so what is
measured on one may differ from what all models use; docs/cpu.md has both.

The second half are weights of the model, not properties of a processor: they were fitted to times of whole kernels, or
assumed, and hold only beside the other terms of such a kernel. Only `cost` reads figures in cycles.
"""

from __future__ import annotations

FLOAT_BYTES = 4
"""Bytes of a float32, by definition."""
LINE_BYTES = 64
"""Bytes of a cache line: of x86-64 and of Arm's cores by their data sheets; 128 on Apple's."""
PAGE_BYTES = 4096
"""Bytes of a page of memory: by definition of x86-64, and Linux's usual size on AArch64."""

# -- instructions ----------------------------------------------------------------------------------------------------

FMA_PER_CYCLE = 2
"""Multiplications of vectors that begin in a cycle; as many additions, minima and the like. Measured: 1.83."""
LOADS_PER_CYCLE = 2
"""Loads of vectors per cycle from the first-level cache. Measured: 1.91."""
FMA_LATENCY = 4
"""Cycles until the sum of a multiplication can be added to. Measured: 4.2."""
FMA_LANES = 16
"""float32 multiplications per cycle in the model of Winograd convolutions: one vector of AVX-512 on Zen 4, two of
AVX2, four of NEON; on AMD EPYC, to which that model was fitted. Measured: 29 on the Xeon, where two vectors of
AVX-512 begin in a cycle: there a cycle of that model is 0.55 of the processor's."""
CODE, CODE_MASKED = 0.5, 0.75
"""Cycles to make a vector of floats of codes: a conversion, and a mask of four bits. Assumed."""
DIVISION = 8
"""Cycles of a division or a root of data, of a vector or of an element, whose unit is not pipelined. Assumed on
2026-11-24. Measured: 10.4 of a vector of 16 lanes, 3.0 of an element."""
FUNCTION_OF_VECTOR = 14
"""Cycles of exp, erf and the like as a polynomial on a vector. Measured: 13 of exp and erf, 14 of sigmoid; it was 20
until 2026-11-28, and kernels are the same (docs/cpu.md)."""
FUNCTION_OF_ELEMENT = 10
"""Cycles of exp, erf and the like on an element. Measured: 7.3 of exp and 10.6 of erf where calls follow each other;
it was 30 until 2026-11-28, and kernels are the same (docs/cpu.md)."""
CONDITION_OF_VECTOR = 0.5
"""Cycles of a condition of a vector: a mask. Assumed on 2026-11-24. Measured: 1.1 with its comparison."""
CONDITION_OF_ELEMENT = 1
"""Cycles of a condition of an element, a predicted branch: assumed."""
SHUFFLE = 1
"""Cycles of a shuffle of a vector. Measured: 1.0."""
ADD_LANES = 6
"""Cycles to add up the lanes of a sum: assumed on 2026-11-26. Measured: 3.4 where vectors follow each other."""
TILE_PRODUCT = 20.0
"""Cycles of a product of two tiles of AMX, with its share of the loads. Measured: 19.3 with one side in the
first-level cache, 21.1 in the second one; 18 and 24 in docs/precision.md (2026-11-25). Tiles of bytes took 1.01 and
0.98 times as long as those of bfloat16 in the same run, which multiply half as many numbers (2026-11-29)."""

# -- caches and memory -----------------------------------------------------------------------------------------------

FIRST_LEVEL_BYTES = 32 * 1024
"""Bytes of the first-level cache: of AMD's Zen and of Intel's until Ice Lake, by their data sheets. Measured: 48
KiB."""
NEAR_LINES_BYTES = FIRST_LEVEL_BYTES // 2
"""Bytes of the first-level cache for the lines of one tile's steps: half of it, assumed."""
SECOND_LEVEL_BYTES = 1024 * 1024
"""Bytes of the second-level cache: of Zen 4 and of Intel's servers until Ice Lake, by their data sheets. Measured:
reads are as fast up to 1 MiB as of 64 KiB, and slower from 1.5 MiB on (2 MiB). Rules take parts of it."""
SPILL_RATE = 10
"""Bytes per cycle that are written to the second-level cache: fitted with the model of Winograd convolutions to
benchmarks/winograd.json (AMD EPYC, 2026-11-24). Measured: 15.8, or 8.6 in a cycle of that model (`FMA_LANES`)."""
THIRD_LEVEL_RATE = 16
"""Bytes per cycle from the third-level cache: fitted with the model of Winograd convolutions to
benchmarks/winograd.json (AMD EPYC, 2026-11-24). Measured: 7.5 from 4 MiB and 6.7 from 16 MiB on the Xeon."""
LAST_LEVEL_BYTES = 32 * 1024 * 1024
"""Bytes of the last-level cache that a core shares: of a complex of Zen 3 and 4, by their data sheets; assumed of
others. Weights of a model that are more come from memory in each inference."""
LAST_LEVEL_BYTE = 0.1
"""Cycles per byte that another kernel has left in a shared cache, in the price of a kernel: assumed on 2026-11-24,
with the table of docs/design.md. Measured: 0.13 from 4 MiB and 0.15 from 16 on the Xeon."""
MEMORY_RATE = 2.0
"""Bytes of weights that all cores together read from memory, per cycle of the model of Winograd convolutions
(`FMA_LANES`): fitted to the table before and after of docs/cpu.md (Register tiles; Xeon with AVX-512, 2026-11-25).
Measured: 4.2 in a cycle of the processor, which is 2.3 in one of that model."""
MEMORY_RATE_ZEN = 8.0
"""The same, in bytes per cycle, of AMD's Zen: fitted to benchmarks/winograd.json (AMD EPYC, 2026-11-24)."""

# -- threads and launches --------------------------------------------------------------------------------------------

WAKE = 750
"""Cycles for each thread that is woken: measured with 16 threads as 4 to 5 us a parallel loop of TVM's, which is 750
to 940 cycles for each at 3 GHz (docs/cpu.md, Products on many threads, Xeon, 2026-11-27)."""
WAKE_WINOGRAD = 1_000
"""The same in the plan of Winograd convolutions, which counts in vectors of multiplications and not in cycles: a
processor with AVX-512 begins one (Zen 4) or two of them (Xeon, measured: 1.83) per cycle, so that `WAKE` is 750 to
1,500 there."""
WORTH_WAKING = 5_000
"""Vector stores of a step, from which on threads share them: measured on 16 cores of a Xeon, where 3,000 to 5,000
take as long as waking the threads (2026-11-27)."""
LAUNCH = 5000.0
"""Cycles of a launch of one more kernel: assumed on 2026-11-24."""
AMX_START = 3000.0
"""Cycles by which a kernel is longer that requests the tile registers of AMX and configures them: fitted, in so far
as it chooses the faster of AMX and float32 for eight products of 16 x 32 x 32 to 64 x 128 x 128 (docs/cpu.md, Xeon,
2026-11-28). Measured: 480 for request and configuration by themselves, with which the three smallest would be
slower."""

# -- weights of GEMM -------------------------------------------------------------------------------------------------

ISSUE = 0.25
"""Cycles by which a load, or an operation of the loop, delays the multiplications beside it: fitted to the times of
23 tiles with AVX-512 in docs/cpu.md (Register tiles; Xeon, 2026-11-25)."""
ISSUE_FEW_REGISTERS = 0.08
"""The same, in cycles, with 16 registers; with AVX-512 a multiplication may load a factor itself. Fitted to the times
of 14 tiles with AVX2 in docs/cpu.md (Register tiles; AMD Zen 3, 2026-11-25)."""
STREAM = 0.22
"""More cycles per vector of a panel that comes from the second-level cache: fitted with `ISSUE`."""
FAR_STREAM = 4.0
"""The same, in cycles, from behind that cache, where the panel of a very deep product is: assumed on 2026-11-25.
Measured: a vector of 64 bytes takes 4.6 cycles from 2 MiB and 8.5 from 4 MiB."""
SCALAR_COPY = 1.5
"""Cycles to load and store one element, or one vector of elements: assumed on 2026-11-21."""
STRIDED_COPY = 1.0
"""Cycles per element that is copied by itself between places that are strided and places that are not: columns of an
image that are rounded or sorted into planes, assumed on 2026-11-25; pixels of planes of a Winograd convolution, fitted
to benchmarks/winograd.json (AMD EPYC, 2026-11-24). Attention counts its time in such elements."""
STORE_DOWN = 0.4
"""Cycles to store an element of a tile whose rows are contiguous in the result: fitted with `LINE_NEAR`."""
FETCH = 0.5
"""Cycles per weight that comes from memory, once for each chunk of rows: a weight of the model, set on 2026-11-21,
and what AMD's Zen takes (`MEMORY_RATE_ZEN`). Measured: 0.96 on the Xeon; with 1.0, Swin-T's products that change took
1.013x of the work on one thread, so it stays (docs/cpu.md, 2026-11-28)."""
LINE_NEAR = 2.0
"""Cycles of each cache line that a copy reads, beside those of its elements; a gathered element has a line of its own.
Fitted to the layers of docs/cpu.md (Register tiles, Which operand has the rows; AMD EPYC with AVX2, 2026-11-26); the
script was not kept."""
LINE_FAR = 20.0
"""More cycles to copy a cache line, as the operand fills the cache: fitted with `LINE_NEAR`."""
OTHER_LINE = 1.0
"""Cycles per step along the depth of a left operand that is not contiguous along it: assumed on 2026-11-25."""
OTHER_LINE_NARROW = 0.3, 2.5, 4.0
"""The same, in cycles, with at most 8 lanes: lines from the first-level cache, the second one, or from behind it.
Fitted with `LINE_NEAR`."""
OTHER_PAGE = 1.5
"""The same, in cycles, where each step is in another page of memory: assumed on 2026-11-25."""
UNASKED = 1.5
"""Cycles per weight from memory where the weights are the left operand, which is not in panels: fitted to layers
within their networks (docs/cpu.md, AMD EPYC, 2026-11-25); the script was not kept."""
UNASKED_NARROW = 0.7
"""The same, in cycles, with vectors of at most 8 lanes: fitted with `LINE_NEAR`."""
FAR_ROWS = 0.15
"""Cycles per left element if the chunk's rows do not fit in the second-level cache: assumed on 2026-11-21."""
FAR_WEIGHT = 0.28
"""The same, in cycles, if the right operand is copied: the left one is then weights. Fitted with `LINE_NEAR`."""

# -- weights of tiles of bfloat16 ------------------------------------------------------------------------------------

ROUND_COPY = 0.25
"""Cycles to round and copy a contiguous element: assumed on 2026-11-25."""

# -- weights of windows that slide -----------------------------------------------------------------------------------

SLIDE_SUM = 4.0
"""Cycles to store a vector of sums, load it, and store its result: assumed on 2026-11-25."""

# -- weights of Winograd convolutions --------------------------------------------------------------------------------
# Fitted to the nine convolutions of benchmarks/winograd.json: `python benchmarks/winograd.py -o FILE`, one thread of an
# AMD EPYC with AVX-512, 2026-11-24.

TRANSFORM = 2.5
"""Cycles per element of a tile, to transform a vector of tiles: fitted to benchmarks/winograd.json."""
PLAIN_CONVOLUTION = 1.1
"""Cycles of a plain convolution, in times those of its products alone: fitted to benchmarks/winograd.json."""

# -- weights of loop nests -------------------------------------------------------------------------------------------

FAR_LOAD = 1.0
"""Cycles per streamed vector load, beside those of its instruction: assumed on 2026-11-24, with the table of
docs/design.md. Measured: 0.8 from the second-level cache."""
ITERATION = 1.0
"""Cycles of loop overhead per iteration that is not unrolled: assumed on 2026-11-24, with the table of
docs/design.md."""
