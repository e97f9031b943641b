# SPDX-License-Identifier: Apache-2.0
"""Passes that rewrite the graph of operators by the laws of algebra (DNNFusion 4.2)."""
