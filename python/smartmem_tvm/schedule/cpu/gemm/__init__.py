# SPDX-License-Identifier: Apache-2.0
"""GEMM on a CPU: one skeleton for all products, micro-kernel x source of operands x epilogue x tasks.

| part | file | what it holds |
|---|---|---|
| micro-kernels | `micro_kernels` | the table: numbers, processor, blocking, forms of both operands |
| | `fma_kernel`, `narrow_kernel`, `amx_kernel`, `quad_tiles` | a class each: the tiles of a panel, the sums of a tile |
| skeleton | `gemm`, `axis` | loops over panels, parts of the depth and tiles, for rows and columns cut into pieces |
| sources | `operands` | what is read at a step, in place or from a copy; lists all sources |
| | `contraction_copies`, `chain_copies`, `amx_image` | the copies of each kind of product |
| | `row_offsets` | where the rows of a tile begin, if their distances vary |
| depth | `depth` | the loops along the depth of a tile |
| epilogues | `epilogue`, `contraction_epilogue` | start values of sums, and the use of the finished ones |
| tasks | `chunks` | rows or columns divided among tasks |
| | `contraction_nest`, `amx_nest`, `quad_tiles` | the parallel loop of matmuls and convolutions, and their sources |
| | `coded_nest` | the same for few rows and a weight in codes, with the sums of its tiles |
| | `chain_product` | a product of a chain of rows: the tasks are those of `cpu.attention` |
| instructions | `accumulators`, `amx`, `amx_block` | sums in vector registers; tiles, and a block of 2 x 2 of them |

`cpu.winograd` and `cpu.slide` have tasks of their own, and hand their products to `gemm` as well. The names are those
of oneDNN and BLIS: a micro-kernel computes a register tile, a panel is as wide as the tile.
"""
