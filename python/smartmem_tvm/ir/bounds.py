# SPDX-License-Identifier: Apache-2.0
"""What TVM's analyzer knows of a number when it knows nothing."""

NO_BOUND = 1 << 62
"""Bounds of `const_int_bound` from here on, and below its negative, are none."""
