# SPDX-License-Identifier: Apache-2.0
"""Check, on request, that each phase preserves the module's outputs on random input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax

from .comparison import compare
from .cpu_code import code_generation
from .errors import CheckError, UserError, reason_of
from .ir.public_functions import MAIN, public_functions
from .tables.precisions import PRECISIONS
from .target import is_cpu

_logger = logging.getLogger(__name__)

_NOT_FOR_CPUS = ("textures", "layout", "schedule")  # on a GPU, modules from the first of these on cannot run on a CPU
_SHORTENS, _LOWERED, _ROUNDS = "precision", "lower", "weights"
_BY_DTYPE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_INTEGERS = 2  # exclusive bound of integers: 0 and 1 are valid ids, flags and indices

Named = tuple[str, tvm.transform.Pass]


class OutputCheck:
    """Runs modules on one input, and compares their outputs with those of the first.

    The input is drawn with a fixed seed: floats standard normal, integers and booleans 0 or 1. An output may differ by
    1e-4 of its largest magnitude (float64: 1e-9, float16: 1e-2). After the phase that shortens types, the tolerance of
    `tables.precisions` applies; after the phase that rounds weights and rows, its outputs are the ones to compare with.
    Integers must be equal. Modules that are not yet specific to a GPU run on the CPU, as loops without a schedule.

    Parameters
    ----------
    mod : tvm.IRModule
        Module of operators or kernels.
    target : tvm.target.Target or None
        Target of the compilation; None is a CPU.
    precision : str
        See `Options`.

    Raises
    ------
    UserError
        If there is no ``main``, if one of its inputs is no tensor of static shape, or if the module cannot run.
    """

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target | None, precision: str = "float32"):
        if MAIN not in public_functions(mod):
            raise UserError(
                "Check of outputs: the module has no function 'main', which is the one that is run; call one of its "
                "functions that, or leave check='outputs' out."
            )
        self._on_cpu = target is None or is_cpu(target)
        self._target = target if target is not None and self._on_cpu else tvm.target.Target("llvm")
        self._precision, self._half, self._foreign = precision, False, False
        self._arrays, self._names = _random_inputs(mod), _output_names(mod)
        try:
            self._expected = self._run(mod)
        except Exception as error:  # of many kinds, from TVM
            raise UserError(
                f"Check of outputs: the model cannot be run before its first phase ({reason_of(error)}), so there is "
                f"nothing to compare with; leave check='outputs' out."
            ) from error

    def after(self, phase: str, before: tvm.IRModule, passes: Sequence[Named], mod: tvm.IRModule) -> None:
        """Compare the module `mod`, into which `passes` turned `before`.

        Raises
        ------
        CheckError
            If an output differs; the error names the guilty pass, which is found by running the passes one by one.
        """
        self._half |= phase == _SHORTENS
        self._foreign |= not self._on_cpu and phase in _NOT_FOR_CPUS
        if self._foreign:
            return
        last = phase == _LOWERED
        difference = self._difference(mod, phase, lowered=last)
        if difference is not None and phase == _ROUNDS:
            self._expected = self._run(mod)
        elif difference is not None:
            of = "" if phase in dict(passes) else f" of phase '{phase}'"
            raise _error(f"{self._guilty(before, passes)}{of} changes", difference)

    def finish(self, run: Callable[..., Sequence[np.ndarray]]) -> None:
        """Compare the outputs of the compiled model, from `run` on its device, with the expected ones.

        Raises
        ------
        CheckError
            If an output differs.
        """
        if self._on_cpu:
            return
        try:
            difference = self._compared(run(*self._arrays))
        except UserError as error:
            _logger.warning("check of outputs: kernels for the GPU are left out (%s).", str(error).rstrip("."))
            return
        if difference is not None:
            name = (
                f"what comes after the graph of kernels (phases {', '.join(_NOT_FOR_CPUS)}, or code generation) changes"
            )
            raise _error(name, difference)

    def _guilty(self, mod: tvm.IRModule, passes: Sequence[Named]) -> str:
        """Return the pass after which outputs differ, with the passes just before it that left no runnable module."""
        since: list[str] = []
        for name, each in passes:
            mod = tvm.transform.Sequential([each])(mod)
            since.append(f"'{name}'")
            try:
                differs = self._compared(self._run(mod)) is not None
            except Exception:  # in the middle of a phase, a module may not be runnable
                continue
            if differs:
                break
            since.clear()
        return f"pass {since[0]}" if len(since) == 1 else f"one of the passes {', '.join(since)}"

    def _difference(self, mod: tvm.IRModule, phase: str, lowered: bool) -> tuple[str, dict, float] | None:
        try:
            found = self._run(mod, None if lowered else "default_build")
        except Exception as error:  # of many kinds, from TVM
            _logger.warning("check of outputs: phase '%s' is left out, it cannot be run (%s).", phase, reason_of(error))
            return None
        return self._compared(found)

    def _run(self, mod: tvm.IRModule, pipeline: str | None = "default_build") -> list[np.ndarray]:
        with self._target, code_generation(self._target) as given:
            executable = relax.build(mod, given, relax_pipeline=pipeline)
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        return _flat(main(*map(tvm.runtime.tensor, self._arrays)))

    def _compared(self, found: Sequence[np.ndarray]) -> tuple[str, dict, float] | None:
        """Return the name of the first output that differs, its errors, and the tolerance."""
        for name, got, expected in zip(self._names, found, self._expected, strict=True):
            allowed = _BY_DTYPE.get(str(expected.dtype), 0.0)
            if self._half and allowed:
                allowed = max(allowed, PRECISIONS[self._precision].tolerance)
            errors = compare(got, expected, allowed, 0.0, reference="the model")
            if not errors["ok"]:
                return name, errors, allowed
        return None


def _error(what: str, difference: tuple[str, dict, float]) -> CheckError:
    name, errors, allowed = difference
    size = errors.get("reason") or f"its largest error is {errors['max_abs_err']:.3g}"
    return CheckError(
        f"Check of outputs: {what} output '{name}': {size}, {errors['max_rel_err']:.3g} of its largest magnitude "
        f"(allowed: {allowed:g}); --dump-dir (dump_dir=) keeps the modules, `smartmem reduce MODEL --check outputs` "
        f"finds the smallest part of the model that shows it."
    )


def _random_inputs(mod: tvm.IRModule) -> list[np.ndarray]:
    random, arrays = np.random.default_rng(0), []
    for param in mod["main"].params:
        shape = getattr(param.ty, "shape", None)
        if shape is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in shape):
            raise UserError(
                f"Check of outputs: input '{param.name}' is no tensor of a static shape; give it one, or leave "
                f"check='outputs' out."
            )
        sizes, dtype = [int(dim) for dim in shape], str(param.ty.dtype.dtype)
        floats = np.issubdtype(np.dtype(dtype), np.floating) or dtype == "bfloat16"
        drawn = random.standard_normal(sizes) if floats else random.integers(0, _INTEGERS, sizes)
        arrays.append(np.asarray(drawn).astype(dtype))
    return arrays


def _output_names(mod: tvm.IRModule) -> list[str]:
    main = mod["main"]
    count = len(_leaves(main.ret_ty))
    known = [str(name) for name in main.attrs["output_names"]] if main.attrs and "output_names" in main.attrs else []
    return known if len(known) == count else [f"output_{number}" for number in range(count)]


def _leaves(kind) -> list:
    fields = kind.fields if isinstance(kind, relax.TupleType) else None
    return [kind] if fields is None else [leaf for field in fields for leaf in _leaves(field)]


def _flat(result) -> list[np.ndarray]:
    return [result.numpy()] if hasattr(result, "numpy") else [array for item in result for array in _flat(item)]
