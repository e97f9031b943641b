# SPDX-License-Identifier: Apache-2.0
"""No kernels that only move data; storage orders; textures (SmartMem 3.2 and 3.3, FluidML 3)."""
