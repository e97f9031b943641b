# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in float16: the pass, and the rewriting of one kernel."""
