# SPDX-License-Identifier: Apache-2.0
"""Operators as loops that rules can schedule."""
