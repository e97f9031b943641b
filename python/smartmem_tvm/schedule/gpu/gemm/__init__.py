# SPDX-License-Identifier: Apache-2.0
"""GEMM on a GPU: one skeleton, filled in by a rule with a micro-kernel, staged operands and an epilogue.

    class                            what it is
    -------------------------------  --------------------------------------------------------------------------------
    skeleton.GpuGemm                 thread blocks in their order, rounds of tiles of terms, split-K
    skeleton.GpuEpilogue             the way of a sum to its result: finished, or as a partial sum (`split_k`)
    product.MatmulProduct            batch, rows, columns and depth of a contraction, each as one fused index
    operand.Operand                  an operand as a function of fused indices; views and windows are inside it

    simt.Simt                        micro-kernel: register tiles of multiply-adds (`simt.OuterProducts`)
    simt_slices.SimtSlices           the same; the slices of a thread block share the epilogue
    mma.Mma, mma.Wgmma               micro-kernels of tensor cores: warps, groups of four warps (`mma.WarpProducts`)

    staging.Prefetched               both operands as `PrefetchedOperand`: through registers, a round ahead
    staging.Gathered                 both as `GatheredOperand`: im2col on the fly, nothing ahead
    staging.Pipelined                both as `StagedOperand`: asynchronous copies, several stages ahead

    coded_rows.CodedWords            words of codes and scales in registers, nothing staged
    coded_rows.CodedRows             micro-kernel: few rows, codes unpacked in registers (`unpacking`)

    rule                   staging      micro-kernel    product
    ---------------------  -----------  --------------  ----------------------------------------------
    matmul.GpuMatmul       Prefetched   Simt            float32 and float16, every GPU
    window.WindowProduct   Gathered     SimtSlices      convolutions, every GPU
    matrix.GpuMatrix       Pipelined    Mma, Wgmma      float16, bfloat16, tf32; compute capability 8.0
    coded.GpuCoded         CodedWords   CodedRows       one to eight rows, weights in codes

Attention has loops of its own, in `attention/`: rows stay on chip between its two products. It takes the products from
here: `simt.OuterProducts` with a `PrefetchedOperand` (chains of rows), `mma.WarpProducts` and `mma.group_products` with
`StagedOperand` (tensor cores). A new type of numbers is a row of `ptx.ELEMENTS`; a new way to read an operand is a
class beside the three staged operands, and its staging.
"""
