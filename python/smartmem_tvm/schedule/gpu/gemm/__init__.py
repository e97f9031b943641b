# SPDX-License-Identifier: Apache-2.0
"""GEMM on a GPU."""
