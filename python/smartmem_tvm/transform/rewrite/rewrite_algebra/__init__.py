# SPDX-License-Identifier: Apache-2.0
"""Graph rewriting by the laws of algebra (DNNFusion 4.2): the pass, its terms, matches and conditions."""
