# SPDX-License-Identifier: Apache-2.0
"""Count the kernels the virtual machine launches for one inference."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..deploy.compiled import Compiled
from ..transform.memory.capture_graphs import RECORD


def count_launches(compiled: Compiled, inputs: list[np.ndarray]) -> Counter:
    """Run one inference, of several sizes by the function of these inputs, and count the launches of each kernel.

    A launch is a call of a PrimFunc by the VM; its own built-ins (allocation, tuples) are not kernels, and TVM's
    library functions (sort, for one) are. A CUDA graph counts with its kernels: its first run launches them twice, once
    for the result and once for the recording.

    Returns
    -------
    Counter
        Kernel name -> number of launches.
    """
    launches: Counter = Counter()
    recording = False

    def before_call(_func, name: str, before_run: bool, _ret, *_args):
        nonlocal recording
        if name == RECORD:
            recording = before_run
        elif before_run and not name.startswith("vm.builtin."):
            launches[name] += 1 if recording else 2
        return 0

    vm = compiled.machine()
    vm.set_instrument(before_call)
    vm[compiled.function_of(inputs)](*vm.tensors(inputs))
    return Counter({name: twice // 2 for name, twice in launches.items()})
