# SPDX-License-Identifier: Apache-2.0
"""Passes that put several operators into one kernel (DNNFusion 4.3)."""
