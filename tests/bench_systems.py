# SPDX-License-Identifier: Apache-2.0
"""Systems without TVM for the tests of measuring; a child process imports this module by name."""

import os
import signal
import time

import numpy as np

from smartmem_tvm.errors import UserError


class Adder:
    """Adds a number; how it misbehaves is part of the request."""

    def __init__(self, request: dict):
        if request.get("trouble") == "refuses":
            raise UserError("Tensor 'x' is odd; give an even one.")
        if request.get("trouble") == "breaks":
            raise ValueError("broken\nin two lines")
        if request.get("trouble") == "hangs":
            time.sleep(60)
        self.request = request
        bytearray(request.get("megabytes", 0) * 1_000_000)  # taken and let go while preparing
        self.facts = {"kernels": 1, "process": os.getpid()}
        if request.get("brings_inputs"):
            self.facts["inputs"] = {"x": np.arange(3.0)}

    def feed(self, inputs):
        self.inputs = inputs
        return [inputs["x"] + self.request.get("adds", 0)]

    def run(self):
        if self.request.get("trouble") == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.request.get("seconds", 0))

    def count(self):
        return {"kernels": 2}


def prepare(request: dict) -> Adder:
    return Adder(request)


def largest_difference(outputs, expected) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(outputs, expected, strict=True))
