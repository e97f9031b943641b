# SPDX-License-Identifier: Apache-2.0
"""The pass that moves tensors and weights to textures, and the classes of tensors that it moves."""
