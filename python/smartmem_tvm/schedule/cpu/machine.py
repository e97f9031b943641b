# SPDX-License-Identifier: Apache-2.0
"""The processor in figures: what the rules' models of time count with, each figure once.

Cycles are those of one core. The first half describes the processor; the second half are weights of models, which are
fitted to the times of whole kernels and hold only beside the other terms of their model.
"""

from __future__ import annotations

FLOAT_BYTES = 4
"""Bytes of a float32."""
LINE_BYTES = 64
"""Bytes of a cache line."""
PAGE_BYTES = 4096
"""Bytes of a page of memory."""

# -- instructions ----------------------------------------------------------------------------------------------------

FMA_PER_CYCLE = 2
"""Multiplications of vectors that begin in a cycle; as many additions, minima and the like."""
LOADS_PER_CYCLE = 2
"""Loads of vectors per cycle from the first-level cache."""
FMA_LATENCY = 4
"""Cycles until the sum of a multiplication can be added to."""
FMA_LANES = 16
"""float32 multiplications per cycle: one vector of AVX-512 on Zen 4, two of AVX2, four of NEON."""
DIVISION = 8
"""Cycles of a division or a root of data, of a vector or of an element: their unit is not pipelined."""
FUNCTION_OF_VECTOR = 20
"""Cycles of exp, erf and the like as a polynomial on a vector."""
FUNCTION_OF_ELEMENT = 30
"""Cycles of exp, erf and the like on an element."""
CONDITION_OF_VECTOR = 0.5
"""Cycles of a condition of a vector: a mask."""
CONDITION_OF_ELEMENT = 1
"""Cycles of a condition of an element: a predicted branch."""
SHUFFLE = 1
"""Cycles of a shuffle of a vector."""
ADD_LANES = 6
"""Cycles to add up the lanes of a sum."""
TILE_PRODUCT = 20.0
"""Cycles of a product of two tiles of AMX, with its share of the loads."""

# -- caches and memory -----------------------------------------------------------------------------------------------

FIRST_LEVEL_BYTES = 32 * 1024
"""Bytes of the first-level cache."""
NEAR_LINES_BYTES = 16 * 1024
"""Bytes of the first-level cache for the lines of one tile's steps."""
SPILL_RATE = 10
"""Bytes per cycle that are written to the second-level cache."""
THIRD_LEVEL_RATE = 16
"""Bytes per cycle from the third-level cache."""
LAST_LEVEL_BYTE = 0.1
"""Cycles per byte that another kernel has left in a shared cache."""

# -- threads and launches --------------------------------------------------------------------------------------------

WAKE = 750
"""Cycles for each thread that is woken; measured with 16 threads."""
WAKE_WINOGRAD = 1_000
"""The same, in cycles, in the plan of Winograd convolutions."""
LAUNCH = 5000.0
"""Cycles of a launch of one more kernel."""
TILE_UNIT_START = 3000.0
"""Cycles to request the tile registers of AMX and to configure them."""

# -- weights of the model of GEMM (matmul_plan, tile) ----------------------------------------------------------------

ISSUE = 0.25
"""Cycles by which a load, or an operation of the loop, delays the multiplications beside it."""
ISSUE_FEW_REGISTERS = 0.08
"""The same, in cycles, with 16 registers; with AVX-512 a multiplication may load a factor itself."""
STREAM = 0.22
"""More cycles per vector of a panel that comes from the second-level cache."""
FAR_STREAM = 4.0
"""The same, in cycles, from behind that cache, where the panel of a very deep product is."""
SCALAR_COPY = 1.5
"""Cycles to load and store one element, or one vector of elements."""
VECTOR_COPY = 0.75
"""Cycles per element at least where vectors are copied, which come from the second-level cache."""
STORE_DOWN = 0.4
"""Cycles to store an element of a tile whose rows are contiguous in the result."""
FAR_COPY = 2.0
"""More cycles per element of a left operand that is copied across its cache lines."""
FETCH = 0.5
"""Cycles per weight that comes from memory, once for each chunk of rows."""
LINE_NEAR = 2.0
"""Cycles to copy a cache line of a left operand."""
LINE_FAR = 20.0
"""More cycles to copy a cache line, as the operand fills the cache."""
OTHER_LINE = 1.0
"""Cycles per step along the depth of a left operand that is not contiguous along it."""
OTHER_LINE_NARROW = 0.3, 2.5, 4.0
"""The same, in cycles, with at most 8 lanes: lines from the first-level cache, the second one, or from behind it."""
OTHER_PAGE = 1.5
"""The same, in cycles, where each step is in another page of memory."""
UNASKED = 1.5
"""Cycles per weight from memory where the weights are the left operand, which is not in panels."""
UNASKED_NARROW = 0.7
"""The same, in cycles, with vectors of at most 8 lanes."""
FAR_ROWS = 0.15
"""Cycles per left element if the chunk's rows do not fit in the second-level cache."""
FAR_WEIGHT = 0.28
"""The same, in cycles, if the right operand is copied: the left one is then weights."""

# -- weights of the model of tiles of bfloat16 (rounded_plan, tile_image) --------------------------------------------

ROUND_COPY = 0.25
"""Cycles to round and copy a contiguous element."""
ROUND_GATHER = 2.0
"""Cycles to gather, round and copy an element of an operand."""
ROUND_GATHER_IMAGE = 1.0
"""Cycles to gather, round and copy a strided element of an image."""

# -- weights of the model of windows that slide (slide) --------------------------------------------------------------

SLIDE_SUM = 4.0
"""Cycles to store a vector of sums, load it, and store its result."""
SLIDE_COPY = 3.0
"""Cycles to fill a vector with padding, and to load and store one."""
SLIDE_DEAL = 1.0
"""Cycles per element that is sorted into planes."""
SLIDE_FAR = 0.1
"""More time, as a fraction, where a copy does not stay in the second-level cache."""

# -- weights of the model of Winograd convolutions (winograd/cost) ---------------------------------------------------

TRANSFORM = 2.5
"""Cycles per element of a tile, to transform a vector of tiles."""
PLANE_COPY = 1.0
"""Cycles per pixel that is copied to or from planes."""
PLAIN_CONVOLUTION = 1.1
"""Cycles of a plain convolution, as a multiple of those of its products alone."""

# -- weights of the count of loop nests (nest_cycles) ----------------------------------------------------------------

FAR_LOAD = 1.0
"""Cycles per streamed vector load, beside those of its instruction."""
ITERATION = 1.0
"""Cycles of loop overhead per iteration that is not unrolled."""
