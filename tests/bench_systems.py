# SPDX-License-Identifier: Apache-2.0
"""Systems without TVM for the tests of measuring; a child process imports this module by name."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from smartmem_tvm.errors import UserError


class Adder:
    """A system that adds a number; the request says how it misbehaves."""

    def __init__(self, request: dict):
        if request.get("trouble") == "refuses":
            raise UserError("Tensor 'x' is odd; give an even one.")
        if request.get("trouble") == "breaks":
            raise ValueError("broken\nin two lines")
        if request.get("trouble") == "hangs":
            time.sleep(60)
        self.request = request
        self._meet("prepare")
        bytearray(request.get("megabytes", 0) * 1_000_000)  # allocated and freed while preparing
        self.facts = {"kernels": 1, "process": os.getpid()}
        if request.get("brings_inputs"):
            self.facts["inputs"] = {"x": np.arange(3.0)}

    def at(self, request):
        return {**self.facts, "inputs": {"x": np.arange(float(request["shapes"]["x"][0]))}}

    def feed(self, inputs):
        self.inputs = inputs
        time.sleep(self.request.get("first_seconds", 0))
        self._meet("feed")
        return [inputs["x"] + self.request.get("adds", 0)]

    def _meet(self, where):
        """Wait until all other systems reach this point, which they never do if they run one by one."""
        if "meet" not in self.request:
            return
        folder, number = self.request["meet"]
        meeting = Path(folder) / where
        meeting.mkdir(parents=True, exist_ok=True)
        (meeting / str(os.getpid())).touch()
        end = time.monotonic() + self.request.get("waits", 25.0)
        while len(list(meeting.iterdir())) < number:
            if time.monotonic() > end:
                raise TimeoutError("waited in vain")
            time.sleep(0.01)

    def ready(self):
        """Nothing changed."""

    def run(self):
        if self.request.get("trouble") == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.request.get("seconds", 0))

    def serve(self, count):
        if self.request.get("trouble") == "dies" and count > 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.5, [0.1] * count

    def count(self):
        return {"kernels": 2}


def prepare(request: dict) -> Adder:
    return Adder(request)


def largest_difference(outputs, expected) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(outputs, expected, strict=True))
