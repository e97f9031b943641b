# SPDX-License-Identifier: Apache-2.0
"""The value by which TVM's analyzer says that a number has no bound."""

NO_BOUND = 1 << 62
"""Upper bounds of `const_int_bound` from this value on, and lower bounds below its negative, mean "unbounded"."""
