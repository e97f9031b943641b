# SPDX-License-Identifier: Apache-2.0
"""How candidates are measured, in a worker process: on data that no kernel reads out of bounds with."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import numpy as np
import tvm
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner

_REPEATS, _READING = 5, 20  # measurements of a candidate, and milliseconds of each at least


def local_runner(patience: float = 30.0) -> LocalRunner:
    """A runner for candidates of any strategy; kernels run on $TVM_NUM_THREADS threads.

    Parameters
    ----------
    patience : float
        Seconds for one candidate, the start of its worker included.
    """
    return LocalRunner(
        timeout_sec=patience,
        evaluator_config=EvaluatorConfig(number=1, repeat=_REPEATS, min_repeat_ms=_READING),
        f_alloc_argument=arguments,
        initializer=outlive_interrupts,
    )


def arguments(device: tvm.runtime.Device, infos: Sequence, repeats: int) -> list[list[tvm.runtime.Tensor]]:
    """Numbers in [0.5, 1.5), and zeros where they may be indices: TVM's own filling is out of bounds of any table."""
    generator = np.random.default_rng(0)
    return [[tvm.runtime.tensor(_array(generator, *info[1:]), device) for info in infos] for _ in range(repeats)]


def _array(generator: np.random.Generator, dtype: str, shape: Sequence[int]) -> np.ndarray:
    if dtype.startswith("float"):
        return (generator.random(tuple(shape), dtype="float32") + 0.5).astype(dtype)
    return np.zeros(tuple(shape), dtype)


def outlive_interrupts() -> None:
    """Leave Ctrl-C to the process that waits for this one: it ends the batch, and then its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
