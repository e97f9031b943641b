# SPDX-License-Identifier: Apache-2.0
"""The systems that `shapes.py` measures, each in a process of its own that holds all shapes (see `bench.child`)."""

from __future__ import annotations

import ctypes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
from shape_list import SHAPES, Convolution, Matmul

from smartmem_tvm.tools.bench.turns import inference
from smartmem_tvm.tune.host import set_threads

OURS, PEAK, OPENBLAS, ORT, TVM = "smartmem", "peak", "OpenBLAS", "ONNX Runtime", "TVM 0.27"
BLOCK = 0.005  # seconds of one measurement: shorter operators run several times
MOST = 50  # times


def environment(threads: int) -> dict[str, str]:
    """What a process has to find set before it starts: no thread of any system spins when its work is done."""
    count = str(threads)
    return {
        "TVM_NUM_THREADS": count,
        "TVM_BIND_THREADS": "0",
        "TVM_THREAD_POOL_SPIN_COUNT": "0",
        "OPENBLAS_NUM_THREADS": count,
        "OPENBLAS_THREAD_TIMEOUT": "4",  # the exponent of its spinning, of which this is the least
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "passive",
    }


def prepare(request: dict) -> System:
    """Make the system that a request names, for its ``threads`` and its ``shapes``."""
    return {OURS: Ours, PEAK: Peak, OPENBLAS: OpenBlas, ORT: OnnxRuntime, TVM: PlainTvm}[request["system"]](request)


class System(ABC):
    """Something that computes the same thing again and again."""

    def __init__(self, request: dict):
        self.threads = request["threads"]
        self.facts = {"shapes": [name for name in request["shapes"] if self.knows(SHAPES[name])]}
        self.facts |= self.about()
        self.once: Callable[[], object] = lambda: None
        self.times = 1

    def knows(self, shape: Matmul | Convolution) -> bool:
        """Whether there is anything to measure."""
        return True

    def about(self) -> dict:
        """Facts for the result file."""
        return {}

    @abstractmethod
    def feed(self, inputs: dict[str, str]) -> list[np.ndarray]:
        """Turn to the shape that is named: its result, its operations, and how often `run` computes it."""

    def begin(self, result: np.ndarray, flops: int) -> list[np.ndarray]:
        """Find out how often to compute a result that was computed once."""
        start = time.perf_counter()
        self.once()
        self.times = max(1, min(MOST, round(BLOCK / (time.perf_counter() - start))))
        return [result, np.array(flops), np.array(self.times)]

    def ready(self) -> None:  # noqa: B027 - most systems have nothing to undo
        """Do nothing: no run changes anything."""

    def run(self) -> None:
        """Compute the result as often as makes up a block."""
        for _ in range(self.times):
            self.once()

    def count(self) -> dict:
        """Nothing more."""
        return {}


class Shapes(System):
    """A system that runs one shape after the other."""

    @abstractmethod
    def runner(self, shape: Matmul | Convolution, arrays: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
        """A call that computes the shape's result."""

    def feed(self, inputs):
        """Compute the shape once."""
        shape = SHAPES[inputs["shape"]]
        self.once = self.runner(shape, shape.arrays())
        return self.begin(np.asarray(self.once()), shape.flops)


class Ours(Shapes):
    """smartmem_tvm, untuned."""

    def __init__(self, request: dict):
        super().__init__(request)
        set_threads(self.threads)

    def compiled(self, shape: Matmul | Convolution):
        """The model as `smartmem compile` makes it."""
        from smartmem_tvm.deploy.build import compile
        from smartmem_tvm.frontend import from_onnx

        return compile(from_onnx(shape.model()), self.target)

    @property
    def target(self):
        """The CPU at hand with as many cores as there are threads."""
        import tvm

        from smartmem_tvm.target import host_target

        return tvm.target.Target({**host_target().export(), "num-cores": self.threads})

    def runner(self, shape, arrays):
        """Compile the shape's model."""
        compiled = self.compiled(shape)
        inputs = [arrays[value.name] for value in shape.model().graph.input]
        run = inference(compiled.vm, inputs)
        return _first(lambda: compiled.run(*inputs)[0], run)


class PlainTvm(Ours):
    """TVM as it comes: its five default passes, and no schedule."""

    def compiled(self, shape):
        """The model as TVM compiles it."""
        from smartmem_tvm.deploy.build import compile_baseline
        from smartmem_tvm.frontend import from_onnx_as_tvm

        return compile_baseline(from_onnx_as_tvm(shape.model()), self.target, schedule=False)


class OnnxRuntime(Shapes):
    """ONNX Runtime's CPU provider; its threads stop spinning when a run ends."""

    def runner(self, shape, arrays):
        """Open a session on the shape's model."""
        from smartmem_tvm.frontend import onnxruntime_session, read_model

        model = shape.model()
        session = onnxruntime_session(read_model(model), self.threads)
        inputs = {value.name: arrays[value.name] for value in model.graph.input}
        return lambda: session.run(None, inputs)[0]


class OpenBlas(Shapes):
    """numpy's matmul."""

    def knows(self, shape):
        """Matmuls only."""
        return isinstance(shape, Matmul)

    def about(self) -> dict:
        """Which kernels it has chosen for this processor."""
        return {"core": blas_core()}

    def runner(self, shape, arrays):
        """Multiply the arrays into one that is there already."""
        left, right = arrays["left"], arrays["right"]
        right = right.swapaxes(-1, -2) if shape.transposed else right
        out = np.empty((*left.shape[:-1], right.shape[-1]), "float32")
        return lambda: np.matmul(left, right, out=out)


class Peak(System):
    """Multiply-adds on registers alone: what the machine has to give."""

    def __init__(self, request: dict):
        super().__init__(request)
        set_threads(self.threads)

    def feed(self, inputs):
        """Compile the loop, which is the same for every shape."""
        from peak import peak_loop

        self.once, flops = peak_loop(self.threads)
        return self.begin(np.zeros(0, "float32"), flops)


def blas_core() -> str:
    """The processor whose kernels numpy's OpenBLAS has chosen."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in folder.glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return function().decode()
    return os.environ.get("OPENBLAS_CORETYPE", "unknown")


def _first(result: Callable, then: Callable) -> Callable:
    """A call that answers with a result the first time, and only runs afterwards."""
    calls = iter([result])
    return lambda: next(calls, then)()
