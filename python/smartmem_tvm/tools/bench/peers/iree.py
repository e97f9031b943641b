# SPDX-License-Identifier: Apache-2.0
"""IREE as a baseline."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...._version import installed_version
from ....errors import UserError
from ..child import System
from . import complete_model, missing_package

if TYPE_CHECKING:
    import numpy as np

# Data tiling is off by default; with it Swin-T takes two thirds of the time.
_FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-data-tiling")


class Iree(System):
    """IREE's LLVM backend for this processor, imported from ONNX, on a pool of the request's number of threads."""

    def __init__(self, request: dict):
        try:
            import iree.compiler.tools
            import iree.runtime
        except ImportError as error:
            raise missing_package("iree", error) from error
        start = time.perf_counter()
        program = _compiled(complete_model(request))
        self.facts = {
            "seconds": {"import": time.perf_counter() - start},
            "version": f"iree {installed_version('iree-base-compiler')}",
        }
        iree.runtime.flags.parse_flags(f"--task_topology_max_group_count={request['threads']}")
        self.config = iree.runtime.Config("local-task")
        context = iree.runtime.SystemContext(config=self.config)
        module = iree.runtime.VmModule.copy_buffer(context.instance, program)
        context.add_vm_module(module)
        names = [name for name in module.function_names if not name.startswith("__") and "$" not in name]
        self.main = context.modules[module.name][names[0]]
        self.inputs: list = []

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays."""
        import iree.runtime

        self.inputs = [iree.runtime.asdevicearray(self.config.device, array) for array in inputs.values()]
        return [each.to_host() for each in self._outputs()]

    def _outputs(self) -> list:
        outputs = self.main(*self.inputs)
        return list(outputs) if isinstance(outputs, tuple | list) else [outputs]

    def run(self) -> None:
        """Run once and wait until the outputs can be read."""
        for each in self._outputs():
            each.to_host()


def _compiled(model) -> bytes:
    """Import and compile in separate processes, whose memory is not part of running."""
    import iree.compiler.tools
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        source, imported = Path(folder) / "model.onnx", Path(folder) / "model.mlir"
        onnx.save(model, source)
        command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(imported)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"iree cannot import {model.graph.name or 'the model'} ({last.rstrip('.')}).")
        return iree.compiler.tools.compile_file(
            str(imported), input_type="onnx", target_backends=["llvm-cpu"], extra_args=list(_FLAGS)
        )
