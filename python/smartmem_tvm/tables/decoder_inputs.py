# SPDX-License-Identifier: Apache-2.0
"""Names that exporters give to the inputs of decoders, in the order in which they are looked for."""

POSITIONS = ("position_ids", "cache_position", "positions", "position")
"""Inputs with the place of each token, of which the first is that of the first new row."""
MASKS = ("attention_mask", "mask")
"""Inputs with a 1 for each row that was written, and for each new one."""
