# SPDX-License-Identifier: Apache-2.0
"""Threads of a server, which import, compile, save, load and run models independently of each other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto, helper, numpy_helper

import smartmem_tvm as sm
from smartmem_tvm.deploy.export import load, save

FLOAT = 1


def _model(nodes, shape, constants, size) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape)]
    output = helper.make_tensor_value_info("y", FLOAT, size)
    kept = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models() -> dict[str, ModelProto]:
    """Return networks of different operators; the second has shape arithmetic to fold, the third a loop to unroll."""
    random, node, one = np.random.RandomState(0), helper.make_node, np.array([1])

    def numbers(*shape):
        return (random.randn(*shape) * 0.3).astype("f4")

    attention = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"])]
    flat = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Shape", ["c"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Concat", ["n", "rest"], ["t"], axis=0),
        node("Reshape", ["c", "t"], ["y"]),
    ]
    recurrent = [node("GRU", ["x", "w", "r"], ["a"], hidden_size=8), node("Squeeze", ["a", "one"], ["y"])]
    return {
        "attention": _model(attention, [4, 32, 64], {"w": numbers(64, 64)}, [4, 32, 64]),
        "flat": _model(
            flat,
            [1, 3, 9, 9],
            {"w": numbers(5, 3, 3, 3), "zero": np.array([0]), "rest": np.array([-1])},
            [1, 405],
        ),
        "recurrent": _model(
            recurrent, [5, 1, 4], {"w": numbers(1, 24, 4), "r": numbers(1, 24, 8), "one": one}, [5, 1, 8]
        ),
    }


class Server:
    """Threads that compile models, others that load the compiled models, and others that run them.

    Parameters
    ----------
    folder : Path
        The folder in which models are saved.
    """

    def __init__(self, folder: Path):
        self.folder, self.models = folder, models()
        self.errors: list[str] = []
        self.done: Counter[str] = Counter()
        self.inputs, self.expected = {}, {}
        for name, model in self.models.items():
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            shape = session.get_inputs()[0].shape
            self.inputs[name] = np.random.RandomState(1).randn(*shape).astype("f4")
            self.expected[name] = session.run(None, {"x": self.inputs[name]})[0]
        self._shared: dict[str, sm.Compiled] = {}

    def run(self, count: int, seconds: float, at_least: int = 1) -> None:
        """Run `count` threads for `seconds`, longer until each has done `at_least` jobs."""
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(number, end, at_least)) for number in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _work(self, number: int, end: float, at_least: int) -> None:
        turn = 0
        names = list(self.models)
        jobs = (self._compile, self._load, self._run_shared)
        while time.monotonic() < end or turn < at_least:
            name, job = names[(number + turn) % len(names)], jobs[(number + turn) // len(names) % len(jobs)]
            try:
                job(name, f"{number}-{turn}")
                self.done[job.__name__] += 1
            except Exception as error:  # of many kinds
                self.errors.append(f"{job.__name__} {name}: {type(error).__name__}: {str(error)[-300:]}")
            turn += 1

    def _compile(self, name: str, _: str) -> None:
        self._check(sm.compile(sm.from_onnx(self.models[name])), name)

    def _load(self, name: str, label: str) -> None:
        compiled = self._compiled(name)
        save(compiled, self.folder / label, {"inputs": [], "outputs": []} | _stated(compiled), {})
        self._check(load(self.folder / label), name)

    def _run_shared(self, name: str, _: str) -> None:
        for _ in range(20):
            self._check(self._compiled(name), name)
            self._check(self._compiled(name).session(), name)

    def _compiled(self, name: str) -> sm.Compiled:
        if name not in self._shared:
            self._shared[name] = sm.compile(sm.from_onnx(self.models[name]))
        return self._shared[name]

    def _check(self, model, name: str) -> None:
        (found,) = model.run(self.inputs[name])
        np.testing.assert_allclose(found, self.expected[name], rtol=1e-4, atol=1e-5)


def _stated(compiled: sm.Compiled) -> dict:
    ((_, inputs),) = compiled.functions.items()
    return {
        "inputs": [{"name": p.name, "shape": list(p.kind.dims), "dtype": p.kind.dtype} for p in inputs],
        "outputs": ["y"],
    }
