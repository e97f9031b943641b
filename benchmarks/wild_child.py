# SPDX-License-Identifier: Apache-2.0
"""One file of wild.py in a process of its own: compiled, compared with ONNX Runtime, and timed beside it.

python wild_child.py REQUEST.json ROW.json; the row is written anew after each step, so that a crash tells where.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from wild_inputs import Drawn, drawn

import smartmem_tvm as sm
from smartmem_tvm.bench.results import plain
from smartmem_tvm.bench.turns import RunEffort, in_turns, summary, timed
from smartmem_tvm.comparison import compare
from smartmem_tvm.errors import UserError
from smartmem_tvm.report import graph_cost, only_moves_data
from smartmem_tvm.runtime.launches import count_launches
from smartmem_tvm.tune.host import set_threads

ROUNDS = 10
"""Calls of a network with states, each with what the last one left."""
EFFORT = RunEffort(budget=1.0, least=5, most=200)

Feeds = dict[str, np.ndarray]
Call = Callable[[Feeds], list[np.ndarray]]


def main() -> int:
    """Take the file of the request."""
    request, place = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    set_threads(request["threads"])
    row: dict = {}
    for stage in (_compile, _compare, _time):
        row["stage"] = stage.__name__.strip("_")
        _write(place, row)
        try:
            stage(request, row)
        except UserError as error:
            row |= {"verdict": "refused", "sentence": str(error)}
        except Exception as error:  # whatever it is belongs into the row
            row |= {"verdict": "internal error", "sentence": f"{type(error).__name__}: {error}"[:400]}
        if row.get("verdict") not in (None, "right"):
            break
    _write(place, {key: value for key, value in row.items() if not key.startswith("_") and key != "stage"})
    return 0


def _write(place: Path, row: Mapping) -> None:
    kept = {key: value for key, value in row.items() if not key.startswith("_")}
    place.write_text(json.dumps(plain(kept)), encoding="utf-8")


def _compile(request: dict, row: dict) -> None:
    inputs = {name: drawn(text, request["file"]) for name, text in request["inputs"].items()}
    values = request["values"]
    shapes = {name: each.shape for name, each in inputs.items() if name not in values}
    given = {"values": values} if values else {}
    seconds, mod = timed(lambda: sm.from_onnx(request["path"], shapes, **given))
    compiled = sm.compile(mod)
    row["seconds"] = {"import": seconds, **compiled.seconds}
    row["kernels"] = graph_cost(compiled.graph).as_dict()["kernels"]
    row["_compiled"], row["_inputs"] = compiled, inputs


def _compare(request: dict, row: dict) -> None:
    dtypes = _dtypes(request["path"])
    inputs, values = row["_inputs"], request["values"]
    draw = partial(_drawn_round, inputs, dtypes, values)
    states = {each.state: name for name, each in inputs.items() if each.state}
    names = [each.name for each in onnx.load(request["path"], load_external_data=False).graph.output]
    ours: Call = lambda feeds: row["_compiled"].run(**{n: a for n, a in feeds.items() if n not in values})  # noqa: E731
    reference = _session(request)
    rounds = ROUNDS if states else 1
    expected = _rounds(draw, lambda feeds: reference.run(None, feeds), states, names, rounds)
    got = _rounds(draw, ours, states, names, rounds)
    row["rounds"] = rounds
    row["deviation"] = _largest(got, expected)
    row["verdict"] = "right" if row["deviation"] <= request["tolerance"] else "wrong"
    if row["verdict"] == "wrong":
        plainly = _session(request, plainly=True)
        own = _largest(_rounds(draw, lambda feeds: plainly.run(None, feeds), states, names, rounds), expected)
        row["reference_deviation"] = own
        if own > request["tolerance"] and own >= row["deviation"] / 10:
            row["verdict"] = "right"  # rounding decides it: ONNX Runtime is as far from itself
    feeds = draw(0)
    mine = [array for name, array in feeds.items() if name not in values]
    functions = {gvar.name_hint: func for gvar, func in row["_compiled"].graph.functions.items()}
    launches = count_launches(row["_compiled"], mine)
    row["kernels"] = launches.total()
    row["layout_kernels"] = sum(
        n for name, n in launches.items() if name in functions and only_moves_data(functions[name])
    )
    row["_calls"] = (partial(ours, feeds), lambda: reference.run(None, feeds))


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
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = request["threads"]
    options.add_session_config_entry("session.x64quantprecision", "1")
    if plainly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(request["path"], options, providers=["CPUExecutionProvider"])


def _dtypes(path: str) -> dict[str, np.dtype]:
    graph = onnx.load(path, load_external_data=False).graph
    return {each.name: onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in graph.input}


def _drawn_round(inputs: Mapping[str, Drawn], dtypes: Mapping, values: Mapping, seed: int) -> Feeds:
    feeds = {name: each.array(dtypes[name], seed) for name, each in inputs.items() if name not in values}
    return feeds | {name: np.asarray(value, dtypes[name]) for name, value in values.items()}


def _rounds(draw: Callable[[int], Feeds], call: Call, states: Mapping[str, str], names: Sequence[str], count: int):
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
