# SPDX-License-Identifier: Apache-2.0
"""The parts that rules of all targets share: the interface of a rule, loop nests, and pattern matching on kernels."""
