# SPDX-License-Identifier: Apache-2.0
"""GEMM on a CPU: the loops of products around micro-kernels."""
