# SPDX-License-Identifier: Apache-2.0
"""Attention and similar chains of row-wise stages on a GPU: the rules, their plans, blocks of rows, products."""
