# SPDX-License-Identifier: Apache-2.0
"""Passes for 16-bit floating point (float16, bfloat16), in memory and in arithmetic."""
