# SPDX-License-Identifier: Apache-2.0
"""OpenVINO as a baseline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..child import System
from . import complete_model, missing_package

if TYPE_CHECKING:
    import numpy as np


class OpenVino(System):
    """OpenVINO's CPU plugin, set to float32: its default is bfloat16 if the processor supports it."""

    def __init__(self, request: dict):
        try:
            import openvino
        except ImportError as error:
            raise missing_package("openvino", error) from error
        self.streams = request.get("streams", 1)
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": request["threads"],
            "NUM_STREAMS": self.streams,
            "PERFORMANCE_HINT": "THROUGHPUT" if self.streams > 1 else "LATENCY",
            "ENABLE_CPU_PINNING": False,  # pinned threads would share cores with those of the other systems
        }
        start = time.perf_counter()
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(complete_model(request).SerializeToString()), "CPU", settings)
        self.requests = openvino.AsyncInferQueue(compiled, self.streams)
        self.requests.set_callback(lambda request, latencies: latencies.append(request.latency / 1e3))
        self.inference = compiled.create_infer_request()
        self.outputs = len(compiled.outputs)
        self.facts = {
            "seconds": {"import": time.perf_counter() - start},
            "version": f"openvino {openvino.__version__.partition('-')[0]}",
        }

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays, which OpenVINO reads without a copy."""
        import openvino

        for name, array in inputs.items():
            for request in (self.inference, *self.requests):
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self.inference.infer()
        return [self.inference.get_output_tensor(index).data.copy() for index in range(self.outputs)]

    def run(self) -> None:
        """Run once."""
        self.inference.infer()

    def serve(self, count: int) -> tuple[float, list[float]]:
        """Serve requests with OpenVINO's own queue, which reports the latency of each."""
        latencies: list[float] = []
        start = time.perf_counter()
        for _ in range(count):
            self.requests.start_async(userdata=latencies)
        self.requests.wait_all()
        return time.perf_counter() - start, latencies
