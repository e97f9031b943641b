# SPDX-License-Identifier: Apache-2.0
"""Which operators share a kernel (DNNFusion 4.3)."""
