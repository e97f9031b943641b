# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in half precision: the pass, and one kernel done again in half."""
