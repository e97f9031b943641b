# SPDX-License-Identifier: Apache-2.0
"""The systems that ``smartmem bench`` measures, each created in its own process (see `bench.child`)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...tune.host import set_threads
from .child import System
from .names import ONNXRUNTIME, TEXTURES, TEXTURES_MATMUL, TORCH_MODES, UNSCHEDULED
from .peers import model_of
from .peers.iree import Iree
from .peers.mnn import Mnn
from .peers.openvino import OpenVino
from .peers.torch import TorchSystem
from .throughput import serve
from .turns import inference, timed

if TYPE_CHECKING:
    import numpy as np
    from tvm.target import Target

    from ...deploy.compiled import Compiled
    from ...deploy.inference_session import Session
    from ...deploy.streams import Streams
    from ...pipeline import Options


def prepare(request: dict):
    """Create the system that a request describes.

    Parameters
    ----------
    request : dict
        ``system``: the name; ``kind``: its kind if the name differs from it (a kind that is not a baseline is ours);
        ``path``, ``shapes``, ``threads``, ``seed``; ``batch`` and ``streams``, if they are more than one; ``values`` of
        inputs, if there are any; ``ranges`` of the shapes, for which ours is compiled once; ``caches`` that ours keeps,
        and their ``rows`` if they grow in the file; ``options``: fields of `pipeline.Options` that differ from the
        default; ``target``: for all except ONNX Runtime, by default this machine's CPU; ``profiles`` and ``records``:
        the files of ours.
    """
    return _MAKERS.get(_kind(request), _smartmem)(request)


def _kind(request: dict) -> str:
    return request.get("kind", request["system"])


def _smartmem(request: dict) -> TvmSystem:
    from ...deploy.build import compile
    from ...frontend import check_inputs, input_spec
    from ...frontend.inputs import random_inputs

    _set_threads(request["threads"])
    target, options = _settings(request)
    if "ranges" in request:
        return _OpenSystem(request, target, options)
    seconds, (mod, limits, nodes, placed) = timed(lambda: _import(request))
    spec = input_spec(mod)
    arrays = placed(check_inputs(spec, random_inputs(spec, limits, request["seed"])))
    facts = {"inputs": dict(zip(spec, arrays)), "onnx_nodes": nodes[0], "onnx_layout_nodes": nodes[1]}
    return TvmSystem(compile(mod, target, options), seconds, facts, of_ours=True, streams=request.get("streams", 1))


def _settings(request: dict) -> tuple[Target, Options]:
    """Return the target of ours, and its options with the files of earlier measurements."""
    from ...deploy.fill_profiles import open_store
    from ...deploy.tuned import open_tuned
    from ...pipeline import Options
    from ...target import parse_target

    target = parse_target(request.get("target"))
    openers = {"profiles": open_store, "records": open_tuned}
    given = {name: Path(request[name]) for name in openers if request.get(name)}
    files = {name: openers[name](path, target, request["threads"]) for name, path in given.items()}
    return target, replace(Options(), **request["options"], **files, caches=request.get("caches", False))


def _set_threads(count: int) -> None:
    """Set TVM's threads, and let them sleep a millisecond after the last kernel.

    By default they spin for longer than the pause between two systems, on the cores of the next one.
    """
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "2000")
    set_threads(count)


def _import(request: dict) -> tuple:
    """Return the module, the limits of integer inputs, the number of nodes, and what makes sense of random inputs.

    The model read is freed.
    """
    from ...frontend import from_onnx
    from ...frontend.inputs import id_limits
    from ...frontend.walk_graph import count_nodes

    model = model_of(request)
    names, original = list(model.inputs), model.original
    limits, nodes = id_limits(model.proto), count_nodes(model.proto)

    def placed(arrays: list[np.ndarray]) -> list[np.ndarray]:
        given = dict(zip(names, arrays, strict=True))
        return list(original.placed(given).values()) if original is not None else arrays

    return from_onnx(model), limits, nodes, placed


def _tvm(request: dict) -> TvmSystem:
    from ..._tvm import without_warnings
    from ...deploy.build import compile_baseline
    from ...deploy.tvm_pipelines import compile_tvm
    from ...frontend import from_onnx_as_tvm
    from ...target import as_adreno, parse_target

    _set_threads(request["threads"])
    seconds, mod = timed(lambda: from_onnx_as_tvm(model_of(request)))
    kind, target, streams = _kind(request), parse_target(request.get("target")), request.get("streams", 1)
    with without_warnings():
        if kind in (TEXTURES, TEXTURES_MATMUL):
            compiled = compile_tvm(mod, as_adreno(target), kind.removeprefix("tvm-"))
        else:
            compiled = compile_baseline(mod, target, schedule=kind == "tvm")
    return TvmSystem(compiled, seconds, {}, streams=streams)


def largest_error(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest deviation of an output relative to its largest value; infinite if outputs do not match."""
    from ...comparison import compare

    if len(outputs) != len(expected):
        return float("inf")
    return max((compare(*pair, 0.0, 0.0)["max_rel_err"] for pair in zip(outputs, expected)), default=0.0)


def _costs(graph, function: str | None = None) -> dict:
    from ...graph_report import graph_cost

    return graph_cost(graph, function).as_dict()


class TvmSystem(System):
    """A model compiled by TVM: our graph, or its own."""

    def __init__(self, compiled: Compiled, import_seconds: float, facts: dict, of_ours: bool = False, streams: int = 1):
        from ...target import is_gpu

        seconds = {"import": import_seconds, **compiled.seconds}
        device = {}
        if is_gpu(compiled.target):
            seconds["driver"], _ = timed(compiled.build_kernels)
            device = {"device": compiled.vm.device.device_name}
        costs = {} if compiled.open else _costs(compiled.graph)
        self.facts = {**facts, **device, **costs, "seconds": seconds}
        if compiled.kernels_per_graph:
            self.facts |= {
                "kernels_per_graph": compiled.kernels_per_graph,
                "kernels_in_graphs": sum(compiled.kernels_per_graph),
            }
        if compiled.tuning:
            from ...deploy.tuned import tuning_report

            self.facts["tuning"] = tuning_report(compiled.tuning, len(compiled.rules))
        self.compiled, self.of_ours, self.streams = compiled, of_ours, streams
        self.inputs: list = []
        self.whole: dict[str, np.ndarray] = {}
        self.calls: dict[Session, Callable[[], None]] = {}

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays, which are in the order of the model's inputs; the first run records CUDA graphs."""
        self.whole = inputs
        arrays = list(inputs.values())
        self.inputs = self.compiled.without_caches(arrays)
        self.first_seconds, outputs = timed(lambda: self.compiled.run_whole(arrays))
        self.once = inference(self.compiled.vm, self.inputs)
        return self.compiled.run_whole(arrays) if self.compiled.kernels_per_graph else outputs

    def ready(self) -> None:
        """Put the caches back."""
        held = self.compiled.vm.caches
        if held is not None:
            held.put_back(self.whole)

    def run(self) -> None:
        """Run once."""
        self.once()

    @cached_property
    def served(self) -> Streams:
        """Return the sessions that serve requests."""
        return self.compiled.streams(self.streams)

    def serve(self, count: int) -> tuple[float, list[float]]:
        """Serve requests on arrays that are already on the device."""
        return serve(self.served.call, self._of_session, self.streams, count)

    def _of_session(self, session: Session) -> Callable[[], None]:
        if session not in self.calls:
            once = inference(session.vm, self.inputs)

            def run() -> None:
                with session.turn:
                    once()

            self.calls[session] = run
        return self.calls[session]

    def count(self) -> dict:
        """Return the kernels launched in one run, and the number of launches that only move data."""
        from ...graph_report import only_moves_data
        from ...runtime.launches import count_launches

        launches: Counter = count_launches(self.compiled, self.inputs)
        functions = {gvar.name_hint: func for gvar, func in self.compiled.graph.functions.items()}
        layout = sum(n for name, n in launches.items() if name in functions and only_moves_data(functions[name]))
        in_graph = self.facts["kernels"]
        counts = {"kernels": launches.total(), "layout_kernels": layout, "kernels_in_graph": in_graph}
        return {**counts, "first_seconds": self.first_seconds, **self._times()}

    def _times(self) -> dict:
        """Return the times of the launches of an inference, where they can be measured, and their roofline bounds."""
        from ...runtime.launch_times import launch_times
        from ...target import is_gpu
        from .kernel_families import shares
        from .slow_share import slow_kernels

        if self.compiled.kernels_per_graph:
            return {}
        launches = launch_times(self.compiled, self.inputs) if is_gpu(self.compiled.target) else None
        found = shares(self.compiled.graph, launches, each=self.of_ours) if launches else {}
        return found | (slow_kernels(self.compiled, self.inputs, launches) if self.of_ours else {})


class _OpenSystem(TvmSystem):
    """Ours with an open dimension, compiled once: a call is `run`, which cuts inputs into tiles or fills them up."""

    def __init__(self, request: dict, target: Target, options: Options):
        from ...deploy.build import compile
        from ...frontend import read_open

        seconds, found = timed(lambda: read_open(request["path"], request["ranges"], request.get("values")))
        super().__init__(compile(found.module, target, options), seconds, {}, of_ours=True)
        self._of_all = self.facts
        self.facts = self.at(request)

    def at(self, request: dict) -> dict:
        """Return the facts at the size of a request: the kernels of all tiles of a call."""
        from ...frontend import check_inputs
        from ...frontend.inputs import id_limits, random_inputs
        from ...frontend.walk_graph import count_nodes

        model = model_of(request)
        arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto), request["seed"]))
        nodes, layout = count_nodes(model.proto)
        facts = {"inputs": dict(zip(model.inputs, arrays)), "onnx_nodes": nodes, "onnx_layout_nodes": layout}
        tiles = [_costs(self.compiled.graph, name) for name in self._functions(arrays)]
        return {**self._of_all, **_added(tiles), **facts}

    def _functions(self, arrays: list[np.ndarray]) -> list[str]:
        """Return the function of each tile of a call."""
        from ...deploy.tiles import Tiles

        compiled, called = self.compiled, []

        def run(*given: object, function: str) -> list[np.ndarray]:
            called.append(function)
            return compiled.run(*given, function=function)

        Tiles(compiled.open, {name: compiled.functions[name] for name in compiled.sizes}).run(run, arrays, {})
        return called

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays, which are in the order of the model's inputs."""
        arrays = list(inputs.values())
        self.once = lambda: self.compiled.run(*arrays)
        self.first_seconds, outputs = timed(self.once)
        return outputs

    def ready(self) -> None:
        """Do nothing: no run changes anything."""

    def count(self) -> dict:
        """Return the time of the first run; the kernels are among the facts."""
        return {"first_seconds": self.first_seconds}


def _added(costs: list[dict]) -> dict:
    """Return the sums of the costs of several tiles."""
    first = costs[0]
    return {
        key: _added([each[key] for each in costs]) if isinstance(value, dict) else sum(each[key] for each in costs)
        for key, value in first.items()
    }


class OnnxRuntime(System):
    """ONNX Runtime's CPU provider."""

    def __init__(self, request: dict):
        from ...frontend import onnxruntime_session

        self.request, self.streams = request, request.get("streams", 1)
        model, threads = model_of(request), max(request["threads"] // self.streams, 1)
        self.original = model.original
        if self.original is not None:
            model = self.original.model  # its caches grow
        seconds, self.session = timed(lambda: onnxruntime_session(model, threads))
        self.facts = {"seconds": {"import": seconds}}
        self.inputs: dict = {}
        self.executor = ThreadPoolExecutor(self.streams)

    def feed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run on the arrays."""
        if self.original is not None:
            arrays = self.original.arrays(inputs)
            self.inputs = {each.name: arrays[each.name] for each in self.session.get_inputs()}
            return self.original.rewritten(self.session.run(None, self.inputs), inputs)
        self.inputs = inputs
        outputs = self.session.run(None, inputs)
        if self.request.get("batch"):
            self._check_batch(outputs)
        return outputs

    def _check_batch(self, outputs: list[np.ndarray]) -> None:
        """Check that the outputs for the batch are those for its samples, one by one."""
        from ...frontend import onnxruntime_session
        from ...frontend.batch import check_batch

        single = onnxruntime_session(model_of({**self.request, "batch": 1}), self.request["threads"])
        samples = ({name: array[[n]] for name, array in self.inputs.items()} for n in range(self.request["batch"]))
        check_batch((single.run(None, sample) for sample in samples), outputs, self.request["path"])

    def run(self) -> None:
        """Run once."""
        self.session.run(None, self.inputs)

    def serve(self, count: int) -> tuple[float, list[float]]:
        """Serve requests with a thread for each stream and one session."""
        return serve(lambda work: self.executor.submit(work, None), lambda _: self.run, self.streams, count)


_MAKERS = {
    **dict.fromkeys(("tvm", TEXTURES, TEXTURES_MATMUL, UNSCHEDULED), _tvm),
    ONNXRUNTIME: OnnxRuntime,
    "openvino": OpenVino,
    "iree": Iree,
    "mnn": Mnn,
    **dict.fromkeys(TORCH_MODES, TorchSystem),
}
