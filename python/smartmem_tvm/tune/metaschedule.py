# SPDX-License-Identifier: Apache-2.0
"""Compose MetaSchedule's parts for a strategy: `--strategy genetic`, `evolutionary` and `replay` on one task."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..errors import UserError
from .features import DecisionFeatures
from .host import usable_cores
from .strategy import Genetic

STRATEGIES = ("genetic", "evolutionary", "replay")
_WARM = 24  # measurements before a cost model is used
_UPSTREAM = {"evolutionary": "evolutionary", "replay": "replay-trace"}
_quiet = logging.getLogger("smartmem_tvm.tune.metaschedule")


def context(mod: tvm.IRModule, target: Target, strategy: str, seed: int, name: str = "main"):
    """Return MetaSchedule's context for tuning one kernel.

    Parameters
    ----------
    mod : tvm.IRModule
        The kernel, as a result of `kernel.workload`.
    strategy : str
        ``genetic`` searches the decisions of our rules; ``evolutionary`` and ``replay`` are TVM's, in TVM's own space.
    seed : int
        Seed, not negative.

    Returns
    -------
    tvm.s_tir.meta_schedule.TuneContext

    Raises
    ------
    UserError
        If the strategy does not exist.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"Option --strategy {strategy} does not exist; choose one of {', '.join(STRATEGIES)}.")
    ours = strategy == "genetic"
    import_intrinsics()
    return ms.TuneContext(
        mod,
        target=target,
        space_generator=_as_it_is if ours else "post-order-apply",
        search_strategy=Genetic(seed) if ours else _UPSTREAM[strategy],
        task_name=name,
        rand_state=seed + 1,  # must be positive
        num_threads=1 if ours else usable_cores(),
        logger=_quiet,
    )


def cost_model(strategy: str) -> ms.CostModel:
    """Return an XGBoost cost model for a strategy's candidates.

    Raises
    ------
    UserError
        If xgboost is not installed.
    """
    try:
        import xgboost  # noqa: F401
    except ImportError as error:
        raise UserError("Tuning needs xgboost: run `pip install smartmem_tvm[tune]`.") from error
    extractor = DecisionFeatures() if strategy == "genetic" else "per-store-feature"
    return ms.cost_model.XGBModel(extractor=extractor, num_warmup_samples=_WARM, num_tuning_cores=1)


def _as_it_is(_: tvm.s_tir.Schedule) -> None:
    """Leave the kernel without decisions: the space that `Genetic` starts from."""


def import_intrinsics() -> None:
    """Import TVM's tensor intrinsics, which its contexts need, in a seventh of the time.

    TVMScript inspects the stack at each of hundreds of definitions, and Python then reads the source of each frame.
    Here the frames come without source, which TVMScript needs only for definitions in classes.
    """
    plain = inspect.stack, inspect.getouterframes
    inspect.stack = lambda context=1: _frames(sys._getframe(1))
    inspect.getouterframes = _frames
    try:
        importlib.import_module("tvm.s_tir.tensor_intrin")
    finally:
        inspect.stack, inspect.getouterframes = plain


def _frames(frame, context: int = 1) -> list[inspect.FrameInfo]:
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found
