# SPDX-License-Identifier: Apache-2.0
"""Chains of rows on a GPU (attention): the rule, its plan, blocks and products."""
