# SPDX-License-Identifier: Apache-2.0
"""A tuning campaign in progress, for the tests of its display."""

import time
from types import SimpleNamespace

from smartmem_tvm.tune.kernel_run import kernel_runs
from smartmem_tvm.tune.tasks import Task


def half_tuned() -> SimpleNamespace:
    """Return two kernels: one of two models, tuned halfway in 20 s; one without any trial."""
    tasks = [Task(("a/one", "b/one"), None, None, 2, {"a": 1, "b": 1}), Task(("b/two",), None, None, 1, {"b": 1})]
    one, two = kernel_runs(tasks, [3e-3, 1e-3])
    one.times, one.tried, one.spent = [None, 2e-3, 4e-3, 2.5e-3], 4, 20.0
    effort = SimpleNamespace(trials=8)
    return SimpleNamespace(kernels=[one, two], effort=effort, current=one, deadline=time.monotonic() + 1000)
