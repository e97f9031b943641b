# SPDX-License-Identifier: Apache-2.0
"""Graph rewriting by the laws of algebra, over operators (DNNFusion 4.2)."""
