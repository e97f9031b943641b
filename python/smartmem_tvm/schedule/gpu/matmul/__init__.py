# SPDX-License-Identifier: Apache-2.0
"""Matmul on a GPU: the rule, its tiles, the path of an operand into registers."""
