# SPDX-License-Identifier: Apache-2.0
"""TrimWindows: remove the places of a window that only ever see padding."""

from __future__ import annotations

import math

import numpy as np
import tvm

from ...analysis.windows import convolution, window_axes
from ...ir.block import Bindings, constant, edit_blocks, shape_of, weight


@tvm.transform.module_pass(opt_level=0, name="smartmem.TrimWindows")
class TrimWindows:
    """Leave out the places of a convolution's window that see nothing but padding, whatever result is computed.

    Before::

        y = conv2d(x, w, padding=24, dilation=24)           # x: (N, C, 14, 14), w: (F, C, 3, 3)

    After::

        y = conv2d(x, w[:, :, 1:2, 1:2])                    # the outer places are 24 away from all pixels

    The result is exact: only products with zero are left out. Dilated windows on small images have such places, and
    windows in time over a single frame.

    Refuses (leaves as they are) weights that are computed or not finite, images of unknown size, and layouts that are
    not channels-first.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return edit_blocks(mod, trim_windows)


def trim_windows(block: Bindings) -> list[dict]:
    """Trim all windows that can be trimmed, in place; return one decision for each."""
    decisions = []
    for var in block.order:
        call = block.values[var]
        axes = window_axes(call)
        if axes is None or all(axis.places == range(axis.window) for axis in axes):
            continue
        values = weight(call.args[1])
        if values is None or not np.isfinite(values).all():
            continue
        places = (slice(axis.places.start, axis.places.stop) for axis in axes)
        kept = values[(slice(None), slice(None), *places)]
        block.edit({var: convolution(call, call.args[0], constant(kept, values), [a.padding for a in axes])})
        saved = 2 * math.prod(shape_of(call)) * (math.prod(values.shape[1:]) - math.prod(kept.shape[1:]))
        decisions.append({"pass": "TrimWindows", "operator": var.name, "action": "trimmed", "flops_saved": saved})
    return decisions
