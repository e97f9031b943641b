# SPDX-License-Identifier: Apache-2.0
"""MNN as a baseline, in a Python environment that is created on demand."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import UserError
from ..child import System
from . import complete_model

if TYPE_CHECKING:
    import numpy as np

VERSION = "3.6.1"
_WORKER = Path(__file__).with_name("mnn_worker.py")


def environment() -> Path:
    """Return the folder of MNN's environment: below $XDG_CACHE_HOME, otherwise ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "smartmem_tvm" / f"mnn-{VERSION}"


def make_environment() -> Path:
    """Return the Python of MNN's environment, and create the environment if it is missing.

    MNN's converter changes the environment that it runs in, so it gets its own.

    Raises
    ------
    UserError
        If the environment cannot be created, for example without access to PyPI.
    """
    folder = environment()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two benchmarks that start at once create only one
        stamp, python = folder / "complete", folder / "bin" / "python"
        if not stamp.exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in (
                [sys.executable, "-m", "venv", str(folder)],
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"MNN=={VERSION}"],
            ):
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                if result.returncode:
                    last = (result.stderr.strip().splitlines() or ["no message"])[-1].rstrip(".")
                    raise UserError(f"mnn needs an environment of its own in {folder}, which cannot be made ({last}).")
            stamp.touch()
    return python


class Mnn(System):
    """MNN's CPU backend in float32, in a process of MNN's environment."""

    def __init__(self, request: dict):
        import onnx

        python = make_environment()
        start = time.perf_counter()
        model = complete_model(request)
        self.names = [value.name for value in model.graph.output]
        with tempfile.TemporaryDirectory() as folder:
            source, converted = Path(folder) / "model.onnx", Path(folder) / "model.mnn"
            onnx.save(model, source)
            command = [str(python), str(_WORKER), str(source), str(converted), str(request["threads"])]
            log = subprocess.DEVNULL
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            version = self._answer()
        self.facts = {"seconds": {"import": time.perf_counter() - start}, "version": f"MNN {version}"}

    def _answer(self) -> Any:
        try:
            ok, content = pickle.load(self.process.stdout)
        except EOFError:
            code = self.process.wait()
            raise UserError(f"mnn ended with exit code {code} while it converted or ran the model.") from None
        if not ok:
            raise UserError(content)
        return content

    def _call(self, name: str, *arguments) -> Any:
        pickle.dump((name, arguments), self.process.stdin)
        self.process.stdin.flush()
        return self._answer()

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays."""
        outputs = self._call("feed", inputs)
        return [outputs[name] for name in self.names]

    def run(self) -> None:
        """Run once; the message to the process and back takes a tenth of a millisecond."""
        self._call("run")

    def count(self) -> dict:
        """Return the peak memory of the process that runs the model; its kernels are not visible from outside."""
        return {"peak_mb": {"run": self._call("finish")}}
