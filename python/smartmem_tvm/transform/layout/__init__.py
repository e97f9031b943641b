# SPDX-License-Identifier: Apache-2.0
"""Passes that eliminate layout operators, choose storage orders and place textures (SmartMem 3.2, 3.3, FluidML 3)."""
