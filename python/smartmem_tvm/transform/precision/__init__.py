# SPDX-License-Identifier: Apache-2.0
"""Numbers of 16 bits, in memory and in arithmetic."""
