# SPDX-License-Identifier: Apache-2.0
"""One trial of ``smartmem reduce`` in a worker process: find out whether and how a model fails."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckError, UserError, reason_of
from ..executor.faults import machine_fault
from ..executor.workers import Workers
from .arrays import save_npz

if TYPE_CHECKING:
    import numpy as np
    import onnx

_PACKAGE = __package__.partition(".")[0]
_FILE = "model.onnx"


@dataclass(frozen=True)
class Failure:
    """A way to fail; `same` compares kind and place.

    Attributes
    ----------
    kind : str
        ``wrong``, ``check`` (of ``--check``), ``refused``, ``internal error``, ``crash``, ``time-out`` or ``command``.
    what : str
        Distinguishes failures of one kind: the check that failed, or the place where the error was raised.
    message : str
        The message of this failure.
    """

    kind: str
    what: str
    message: str

    def same(self, other: Failure | None) -> bool:
        """Whether another failure has the same kind and place."""
        return other is not None and (self.kind, self.what) == (other.kind, other.what)


class Trials:
    """Test models in a worker, which may crash or hang.

    Parameters
    ----------
    args : argparse.Namespace
        The options of compilation and the limits.
    """

    def __init__(self, args: argparse.Namespace):
        plain = (str, int, float, bool, list, type(None))
        self._args = argparse.Namespace(**{k: v for k, v in vars(args).items() if isinstance(v, plain)})
        self._workers = Workers(1, args.timeout, imports=("smartmem_tvm.cli.trial", "onnxruntime"))

    def failure(self, model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> Failure | None:
        """Return how a model fails, None if it does not.

        Raises
        ------
        UserError
            If the machine fails instead of the model.
        """
        if self._args.command is not None:
            return self._command(model, arrays)
        (answer,) = self._workers.map(_failure, [(model.SerializeToString(), dict(arrays), self._args)])
        if not answer.error:
            return answer.value
        if machine_fault(answer.error):
            raise UserError(f"A model could not be tried here ({answer.error.rstrip('.')}); run the command again.")
        kind = "time-out" if "took longer" in answer.error else "crash"
        return Failure(kind, answer.error, answer.error)

    def evaluate(self, case, names) -> dict[str, np.ndarray]:
        """Call `reduce.case.evaluate`, which runs ONNX Runtime, in the worker."""
        (answer,) = self._workers.map(_evaluate, [(case.model.SerializeToString(), dict(case.arrays), list(names))])
        return {} if answer.error else answer.value

    def close(self) -> None:
        """End the worker."""
        self._workers.close()

    def _command(self, model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> Failure | None:
        """Run the user's command: exit code 0 means that the failure persists."""
        with tempfile.TemporaryDirectory(prefix="smartmem-reduce-") as folder:
            path = Path(folder) / _FILE
            path.write_bytes(model.SerializeToString())
            save_npz(path.with_suffix(".npz"), arrays)
            words = [*shlex.split(self._args.command), str(path)]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            try:
                code = subprocess.run(words, timeout=self._args.timeout, check=False, **quiet).returncode
            except subprocess.TimeoutExpired:
                return None
            except OSError as error:
                raise UserError(f"--command {words[0]} cannot be run ({error.strerror}); give a program.") from error
        return Failure("command", "", f"{self._args.command} ends with exit code 0") if code == 0 else None


def _failure(job: tuple) -> Failure | None:
    content, arrays, args = job
    try:
        return _wrong(content, arrays, args)
    except CheckError as error:
        return Failure("check", error.what, str(error))
    except UserError as error:
        return Failure("refused", _without_names(str(error)), str(error))
    except Exception as error:  # the failure that is searched for
        last = [each for each in traceback.extract_tb(error.__traceback__) if _PACKAGE in each.filename]
        where = f"{Path(last[-1].filename).name}:{last[-1].name}" if last else ""
        reason = reason_of(error)
        what = f"{type(error).__name__} {where} {_without_names(reason)}"
        return Failure("internal error", what, f"{type(error).__name__}: {reason} ({where})")


def _without_names(sentence: str) -> str:
    """Return a sentence with names, shapes and numbers replaced by ``#``."""
    return re.sub(r"'[^']*'|\[[^\]]*\]|[-\d.]*\d", "#", sentence)


def _wrong(content: bytes, arrays: dict, args: argparse.Namespace) -> Failure | None:
    """Compile and run a model, and compare it with ONNX Runtime."""
    import onnx

    from ..comparison import compare
    from ..deploy.build import compile
    from ..frontend import check_inputs, from_onnx, output_names, read_model, run_onnxruntime
    from ..target import parse_target
    from .model import options

    model = read_model(onnx.load_from_string(content))
    inputs = check_inputs(model.inputs, arrays)
    mod = from_onnx(model)
    got = compile(mod, parse_target(args.target), options(args)).run(*inputs)
    expected = run_onnxruntime(model, arrays)
    if len(got) != len(expected):
        return Failure("wrong", "number of outputs", f"{len(got)} outputs, ONNX Runtime has {len(expected)}")
    for name, *pair in zip(output_names(mod), got, expected):
        found = compare(*pair, args.rtol, args.atol)
        if not found["ok"]:
            error = f"output '{name}' is off by {found['max_rel_err']:.3g} of its largest magnitude"
            return Failure("wrong", _without_names(found.get("reason", "")), found.get("reason", error))
    return None


def _evaluate(job: tuple) -> dict:
    import onnx

    from ..tools.reduce import Case
    from ..tools.reduce.case import evaluate

    content, arrays, names = job
    return evaluate(Case(onnx.load_from_string(content), arrays), names)
