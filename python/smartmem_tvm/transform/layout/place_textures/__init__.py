# SPDX-License-Identifier: Apache-2.0
"""Tensors and weights that move to textures: a pass, and what it moves."""
