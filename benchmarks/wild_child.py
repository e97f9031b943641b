# SPDX-License-Identifier: Apache-2.0
"""One file of wild.py in a process of its own: compiled, compared with ONNX Runtime, and timed beside it.

python wild_child.py REQUEST.json ROW.json; the row is written anew after each step, so that a crash tells where.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from wild_inputs import Drawn, sizes_of

import smartmem_tvm as sm
from smartmem_tvm.comparison import compare, judge_difference
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import read_model, run_exactly
from smartmem_tvm.frontend.exact_onnxruntime import session_options
from smartmem_tvm.graph_report import graph_cost, only_moves_data
from smartmem_tvm.json_data import plain
from smartmem_tvm.peak_memory import peak_mb
from smartmem_tvm.runtime.launches import count_launches
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, summary, timed
from smartmem_tvm.tune.host import set_threads

ROUNDS = 10
"""Calls of a network with states, each with what the last one left."""
MOVED = 2.0**-20
"""Of a number: eight units of the last digit in float32, less than what rounding does on the way through a network."""
_REFUSALS = (InvalidArgument, Fail, RuntimeException)
_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
EFFORT = RunEffort(budget=1.0, least=5, most=200)

Feeds = dict[str, np.ndarray]
Call = Callable[[Feeds], list[np.ndarray]]


def main() -> int:
    """Take the file of the request."""
    request, place = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (request["memory"],) * 2)
    set_threads(request["threads"])
    row: dict = {}
    for stage in (_compile, _compare, _time):
        row["stage"] = stage.__name__.strip("_")
        _write(place, row)
        try:
            stage(request, row)
        except UserError as error:
            row |= {"verdict": "refused", "sentence": _without_folder(str(error), request)}
        except Exception as error:  # whatever it is belongs into the row
            text = f"{type(error).__name__}: {error}"[:400]
            row |= {"verdict": "internal error", "sentence": _without_folder(text, request)}
        if row.get("verdict") not in (None, "right"):
            break
    _write(place, {key: value for key, value in row.items() if not key.startswith("_") and key != "stage"})
    return 0


def _without_folder(sentence: str, request: dict) -> str:
    """A sentence in which the file has its name alone: where it lies is this machine's business."""
    return sentence.replace(request["path"], Path(request["path"]).name)


def _write(place: Path, row: Mapping) -> None:
    kept = {key: value for key, value in row.items() if not key.startswith("_")}
    place.write_text(json.dumps(plain(kept)), encoding="utf-8")


def _compile(request: dict, row: dict) -> None:
    sizes = sizes_of(request["inputs"], request["file"])
    values = request["values"]
    shapes = [{name: each.shape for name, each in inputs.items() if name not in values} for inputs in sizes]
    given = {"values": values} if values else {}
    before = _processor_seconds()
    seconds, mod = timed(lambda: sm.from_onnx(request["path"], shapes if len(shapes) > 1 else shapes[0], **given))
    compiled = sm.compile(mod)
    row["seconds"] = {"import": seconds, **compiled.seconds}
    row["processor_seconds"] = _processor_seconds() - before
    row["peak_mb"] = peak_mb()
    row["kernels"] = graph_cost(compiled.graph, next(iter(compiled.sizes), None)).as_dict()["kernels"]
    row["weights_mb"] = sum(each.nbytes for each in compiled.weights) / 1e6
    row["_compiled"], row["_sizes"] = compiled, sizes


def _processor_seconds() -> float:
    """Of this process with all its threads, and of its helpers that have ended."""
    return sum(getattr(resource.getrusage(who), part) for who in _PROCESSES for part in ("ru_utime", "ru_stime"))


def _compare(request: dict, row: dict) -> None:
    dtypes = _dtypes(request["path"])
    sizes, values = row["_sizes"], request["values"]
    draw: Callable[[int], Feeds] = lambda seed: _drawn_round(sizes[seed % len(sizes)], dtypes, values, seed)  # noqa: E731
    states = {each.state: name for name, each in sizes[0].items() if each.state}
    names = [each.name for each in onnx.load(request["path"], load_external_data=False).graph.output]
    ours: Call = lambda feeds: row["_compiled"].run(**{n: a for n, a in feeds.items() if n not in values})  # noqa: E731
    reference = _session(request)
    run = partial(_rounds, states=states, names=names, count=ROUNDS if states else len(sizes))
    theirs: Call = lambda feeds: reference.run(None, feeds)  # noqa: E731
    try:
        expected = run(draw, theirs)
    except _REFUSALS as error:
        row |= {
            "verdict": "wrong input",
            "sentence": f"ONNX Runtime does not take the inputs of the table: {error}"[:300],
        }
        return
    got = run(draw, ours)
    row["rounds"] = ROUNDS if states else len(sizes)
    row["deviation"] = _largest(got, expected)
    row["verdict"] = "right" if row["deviation"] <= request["tolerance"] else "wrong"
    if row["verdict"] == "wrong":
        plainly = _session(request, plainly=True)
        others = (run(draw, lambda feeds: plainly.run(None, feeds)), run(lambda seed: _moved(draw(seed)), theirs))
        own = max(_largest(each, expected) for each in others)
        row["reference_deviation"] = own
        if own > request["tolerance"] and own >= row["deviation"] / 10:
            row["verdict"] = "right"  # rounding decides it: ONNX Runtime is as far from itself
        elif not states and len(sizes) == 1:
            row |= _exactly(request, draw(0), got, expected)
    feeds = draw(0)
    mine = [array for name, array in feeds.items() if name not in values]
    functions = {gvar.name_hint: func for gvar, func in row["_compiled"].graph.functions.items()}
    launches = count_launches(row["_compiled"], mine)
    layout = [name for name in launches if name in functions and only_moves_data(functions[name])]
    row |= {"kernels": launches.total(), "layout_kernels": sum(launches[name] for name in layout)}
    # What is timed is ONNX Runtime as anybody opens it: the exact sums of `session_options` may take twice as long.
    usual = _usual_session(request)
    every = [draw(number) for number in range(len(sizes))]  # a call takes each size once
    row["_calls"] = tuple(
        lambda run=run: [run(each) for each in every] for run in (ours, lambda each: usual.run(None, each))
    )


def _moved(feeds: Feeds) -> Feeds:
    """Inputs of which each number is off by `MOVED` at most."""
    random = np.random.default_rng(0)
    return {
        name: array * (1 + random.uniform(-MOVED, MOVED, array.shape)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feeds.items()
    }


def _exactly(request: dict, feeds: Feeds, got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> dict:
    """The verdict of ONNX's own implementation in float64, where it has the operators."""
    given = {name: array for name, array in feeds.items() if name not in request["values"]}
    shapes = {name: array.shape for name, array in given.items()}
    exact = run_exactly(read_model(request["path"], shapes, values=request["values"] or None), given)
    if exact is None:
        return {}
    allowed = (request["tolerance"], 0.0)
    judged = [
        judge_difference(compare(mine, right, *allowed), mine, right, *both, allowed)
        for mine, right, *both in zip(got, expected, *exact, strict=True)
    ]
    reason = "; ".join(each["reason"] for each in judged if "exact" in each)
    return {"exact": reason, "verdict": "right"} if all(each["ok"] for each in judged) else {}


def _time(request: dict, row: dict) -> None:
    if not request["times"]:
        return
    ours, theirs = (summary(seconds) for seconds in in_turns([_processor(each) for each in row["_calls"]], EFFORT))
    row["latency"] = {"smartmem": ours, "onnxruntime": theirs}


def _processor(call: Callable[[], object]) -> Callable[[], float]:
    """Processor seconds of a call: other work on the machine does little to it. One thread works."""

    def run() -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    return run


def _session(request: dict, plainly: bool = False) -> onnxruntime.InferenceSession:
    """ONNX Runtime on the file as it is, with its open sizes; `plainly` without optimizations."""
    options = session_options(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL if plainly else None)
    options.intra_op_num_threads = request["threads"]
    return onnxruntime.InferenceSession(request["path"], options, providers=["CPUExecutionProvider"])


def _usual_session(request: dict) -> onnxruntime.InferenceSession:
    """ONNX Runtime with its own options, on as many threads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = request["threads"]
    return onnxruntime.InferenceSession(request["path"], options, providers=["CPUExecutionProvider"])


def _dtypes(path: str) -> dict[str, np.dtype]:
    graph = onnx.load(path, load_external_data=False).graph
    return {each.name: onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in graph.input}


def _drawn_round(inputs: Mapping[str, Drawn], dtypes: Mapping, values: Mapping, seed: int) -> Feeds:
    feeds = {name: each.array(dtypes[name], seed) for name, each in inputs.items() if name not in values}
    return feeds | {name: np.asarray(value, dtypes[name]) for name, value in values.items()}


def _rounds(
    draw: Callable[[int], Feeds], call: Call, states: Mapping[str, str], names: Sequence[str], count: int
) -> list[np.ndarray]:
    """What each of so many calls gives, in which states go round."""
    results, kept = [], {}
    for number in range(count):
        outputs = [np.array(each) for each in call(draw(number) | kept)]
        results += outputs
        kept = {states[name]: array for name, array in zip(names, outputs) if name in states}
    return results


def _largest(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    if len(got) != len(expected):
        return float("inf")
    return max((compare(mine, right, 0.0, 0.0)["max_rel_err"] for mine, right in zip(got, expected)), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
