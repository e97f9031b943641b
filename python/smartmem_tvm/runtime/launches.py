# SPDX-License-Identifier: Apache-2.0
"""Count the kernels the virtual machine launches for one inference."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..deploy.build import Compiled


def count_launches(compiled: Compiled, inputs: list[np.ndarray]) -> Counter:
    """Run one inference and count the launches of each kernel.

    A launch is a call of a PrimFunc by the VM; its own built-ins (allocation, tuples) are not kernels, and TVM's
    library functions (sort, for one) are.

    Returns
    -------
    Counter
        Kernel name -> number of launches.
    """
    launches: Counter = Counter()

    def before_call(_func, name: str, before_run: bool, _ret, *_args):
        if before_run and not name.startswith("vm.builtin."):
            launches[name] += 1
        return 0

    vm = compiled.machine()
    vm.set_instrument(before_call)
    vm["main"](*vm.tensors(inputs))
    return launches
