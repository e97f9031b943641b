# SPDX-License-Identifier: Apache-2.0
"""``smartmem measure``: the times and outputs of a compiled model on a device of a tracker."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .argument_types import positive, seconds, tolerance
from .console import Result, step, table
from .model import add_input, make_inputs, with_positions
from .open_sizes import add_sizes, open_specs
from .several_sizes import chosen_size, shape_of, size_text

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from ..frontend import Model
    from ..remote.session import Session
    from ..remote.tracked_devices import TrackedDevices

NAME = "measure"
HELP = "run a compiled folder on a device of a tracker: latency, kernels, determinism, correctness"
EXAMPLE = """\
  smartmem measure swin --tracker 127.0.0.1:9190 --key pixel    a folder made by smartmem compile --target ...
  smartmem measure swin --tracker ... --key pixel --json        for `smartmem report` and for comparing devices
  smartmem measure swin --tracker ... --key pixel --model m.onnx    where the model is now

A folder of several sizes is measured at each of them, with a row for each; one with an open dimension at some sizes, or
those of --sizes. Latencies are those of the device's own
clock, without the network. The outputs are compared with ONNX Runtime's on this machine's CPU; the exit code is 1 if
one is wrong, or if runs on the same input differ."""
_SESSION = 600.0  # seconds of one try on one device
_SHOWN = 12  # kernels in the printed table
_SIZE_COLUMNS = ("size", "median", "p10", "p90", "layout", "error", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("folder", metavar="DIR", help="a folder made by `smartmem compile`")
    parser.add_argument("--tracker", required=True, metavar="ADDRESS", help="host:port of a tracker")
    parser.add_argument("--key", required=True, help="which kind of device")
    parser.add_argument("--model", metavar="FILE", help="the ONNX or .pt2 file (default: where it was when compiled)")
    add_input(parser)
    add_sizes(parser)
    text = "timed inferences (default: 50)"
    parser.add_argument("--repeat", "--runs", dest="runs", type=positive, default=50, metavar="N", help=text)
    parser.add_argument("--warm-up", type=positive, default=5, metavar="N", help="before them (default: 5)")
    text = "inferences whose outputs have to be the same, bit by bit (default: 5)"
    parser.add_argument("--replays", type=positive, default=5, metavar="N", help=text)
    text = "run every kernel by itself, too, and compare it with this machine's CPU: which one does a driver get wrong?"
    parser.add_argument("--layers", action="store_true", help=text)
    parser.add_argument("--rtol", type=tolerance, help="error allowed, as for verify")
    text = "seconds to wait for a free device (default: 60)"
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help=text)
    text = f"seconds a device may take for all (default: {_SESSION:g})"
    parser.add_argument("--limit", type=seconds, default=_SESSION, metavar="S", help=text)


def execute(args: argparse.Namespace) -> Result:
    """Measure, and compare with this machine."""
    from ..deploy.manifest import read_manifest, require_whole_weights
    from ..frontend import read_sizes
    from ..ir.public_functions import MAIN
    from ..remote.tracked_devices import TrackedDevices

    folder = Path(args.folder)
    manifest = read_manifest(folder, elsewhere=True, several=True)
    require_whole_weights(folder, manifest)
    if args.sizes is not None and "open" not in manifest:
        raise UserError(f"--sizes is for a folder with an open dimension, and {folder} has none: leave it out.")
    sizes = _open(args, manifest) if "open" in manifest else manifest.get("sizes", [{**manifest, "function": MAIN}])
    if len(sizes) > 1 and args.input is not None:
        raise UserError(f"--input has arrays of one size, and {folder} holds {len(sizes)}: leave it out.")
    devices = TrackedDevices(args.tracker, args.key, timeout=args.timeout, session_limit=args.limit)
    shapes = [{each["name"]: tuple(each["shape"]) for each in size["inputs"]} for size in sizes]
    models = read_sizes(_model_file(args, manifest), shapes, manifest.get("values"), manifest.get("rows"))
    found = [_measured(args, manifest, size, model, devices) for size, model in zip(sizes, models, strict=True)]
    named = {"folder": args.folder, "model": manifest["model"], "target": manifest["target"]}
    right = all(each["correct"] and each["deterministic"] for each in found)
    several = len(sizes) > 1 or "open" in manifest
    data = {**named, **({"sizes": found} if several else found[0])}
    show = _render_sizes if several else _render
    return Result(data, lambda console: show(console, data), 0 if right else 1)


def _open(args: argparse.Namespace, manifest: dict) -> list[dict]:
    """Return some sizes that an open dimension takes, as the manifest has them of several sizes, without a function."""
    from ..deploy.export import input_spec

    if args.layers:
        raise UserError(f"--layers is for kernels of one size, and {args.folder} has an open dimension: leave it out.")
    specs = {each["function"]: input_spec(each["inputs"]) for each in manifest["sizes"]}
    groups = manifest["open"]
    if args.input is None:
        found = open_specs(groups, specs, args.sizes)
    else:
        asked = argparse.Namespace(model=args.folder, shape=[], input=args.input)
        found = [chosen_size(asked, specs, groups=groups)]
    described = {"outputs": manifest["sizes"][0]["outputs"], "function": None}
    return [
        {**described, "inputs": [{"name": name, "shape": shape} for name, shape in shape_of(spec).items()]}
        for spec in found
    ]


def _measured(args: argparse.Namespace, manifest: dict, size: dict, model: Model, devices: TrackedDevices) -> dict:
    """Return what was measured of one size, and how its outputs compare."""
    from ..frontend import reference_name, run_reference
    from ..frontend.inputs import id_limits
    from ..ir.public_functions import MAIN
    from ..remote.measure_model import measure

    arrays = make_inputs(args, model.inputs, id_limits(model.proto), model.values)
    arrays = with_positions(model, arrays) if args.input is None else arrays
    text = f" at {size_text(model.inputs)}" if size["function"] != MAIN else ""
    with step(f"Running {reference_name(model)}{text}"):
        expected = run_reference(model, dict(zip(model.inputs, arrays)))

    def work(session: Session) -> tuple[dict, list[np.ndarray]]:
        counts = {"warm_up": args.warm_up, "runs": args.runs, "replays": args.replays}
        return measure(session, Path(args.folder), arrays, function=size["function"], **counts)

    with step(f"Measuring on a device of key {args.key}{text}"):
        facts, got = devices.with_session(work)
    outputs = _compared(args, manifest["precision"], size["outputs"], got, expected)
    if args.layers:
        facts["layers"] = _layers(manifest, model, devices)
    correct = all(each["ok"] for each in outputs.values()) and not _wrong(facts)
    return {"size": size_text(model.inputs), **facts, "outputs": outputs, "correct": correct}


def _layers(manifest: dict, model: Model, devices: TrackedDevices) -> list[dict]:
    """Return the result of `remote.layers.check_layers`, on a device of the same key."""
    from tvm.target import Target

    from ..frontend import from_onnx
    from ..pipeline import Options
    from ..remote.layers import check_layers, layers_of
    from ..remote.tracked_devices import RemoteDevice

    target, options = Target(manifest["target"]), Options(precision=manifest["precision"])
    with tempfile.TemporaryDirectory() as folder:
        with step("Compiling the kernels one by one"):
            layers = layers_of(from_onnx(model), target, options, Path(folder))
        with step("Running them"):
            return devices.with_session(lambda session: check_layers(RemoteDevice(session, target), layers))


def _wrong(facts: dict) -> list[dict]:
    return [each for each in facts.get("layers", ()) if each["wrong"]]


def _model_file(args: argparse.Namespace, manifest: dict) -> str:
    """Return the ONNX file that the folder was made from.

    Raises
    ------
    UserError
        If the file is no longer at its path.
    """
    found = args.model or manifest.get("model", "")
    if not found or not Path(found).exists():
        raise UserError(
            f"Model {found} of folder {args.folder}, with whose results those of the device are compared, does not "
            f"exist here: name it with --model FILE."
        )
    return found


def _compared(args: argparse.Namespace, precision: str, names: list[str], got: list, expected: list) -> dict:
    from ..comparison import compare
    from ..tables.precisions import PRECISIONS

    rtol = args.rtol if args.rtol is not None else PRECISIONS[precision].tolerance
    return {name: compare(*pair, rtol, 0.0) for name, *pair in zip(names, got, expected, strict=True)}


def _replayed(device: dict) -> str:
    """Say how the device's driver repeats recorded launches."""
    return f" (recorded ones by {device['replay']})" if device.get("replay") else ""


def _exceeding(data: dict) -> str:
    """Return the warning for kernels that together take longer than the whole inference."""
    return (
        f"Warning: kernels by themselves add up to {data['kernels_ms']:.2f} ms, more than the whole inference takes. "
        f"Each was timed alone, with a launch of its own and other data in the caches, and a device may lower its "
        f"clock between them: go by the median of the inference, and take the shares for an order of kernels only."
    )


def _render_sizes(console: Console, data: dict) -> None:
    """Print a row for each size."""
    rows = []
    for each in data["sizes"]:
        latency, error = each["latency_ms"], max((out["max_rel_err"] for out in each["outputs"].values()), default=0.0)
        verdict = ("" if each["deterministic"] else "runs DIFFER, ") + ("right" if each["correct"] else "WRONG")
        times = [f"{latency[name]:.2f}" for name in ("median", "p10", "p90")]
        rows.append((each["size"], *times, f"{each['layout_share']:.1%}", f"{error:.1e}", verdict))
    console.print(table(data["folder"], _SIZE_COLUMNS, rows, numbers=(1, 2, 3, 4, 5)))
    device = data["sizes"][0]["device"]
    console.print(
        f"Milliseconds of {data['sizes'][0]['latency_ms']['runs']} runs each; the share of layout operators in the "
        f"kernels' time; the largest error relative to the output's largest element, beside ONNX Runtime. "
        f"First size on {device.get('name', device['kind'])}, key {data['sizes'][0]['key']}."
    )


def _render(console: Console, data: dict) -> None:
    device, latency = data["device"], data["latency_ms"]
    rows = [
        (each["kernel"], each["launches"], f"{each['seconds'] * 1e3:.3f}", f"{each['share']:.1%}")
        for each in data["kernels"][:_SHOWN]
    ]
    console.print(table(data["folder"], ("kernel", "launches", "ms", "share"), rows, numbers=(1, 2, 3)))
    if len(data["kernels"]) > _SHOWN:
        console.print(f"and {len(data['kernels']) - _SHOWN} more kernels.")
    console.print(
        f"{latency['median']:.2f} ms, the median of {latency['runs']} runs; 10th percentile {latency['p10']:.2f}, 90th "
        f"{latency['p90']:.2f}, 99th {latency['p99']:.2f}. Layout operators take {data['layout_share']:.1%} of the "
        f"kernels' time.\n"
        f"On {device.get('name', device['kind'])}, driver {device.get('driver') or 'unknown'} ({data['address']}, key "
        f"{data['key']}).\n"
        f"{data['replays']} runs on the same input {'agree' if data['deterministic'] else 'DIFFER'}, bit by bit."
    )
    if data["host_ms"] is not None:
        console.print(
            f"The host hands its {data['launches']} launches over in {data['host_ms']:.2f} ms, "
            f"{data['host_us_per_launch']:.1f} us each{_replayed(device)}."
        )
    if data["kernels_exceed"]:
        console.print(_exceeding(data))
    if "layers" in data:
        wrong = _wrong(data)
        console.print(f"Kernels by themselves: {len(data['layers'])}, of which wrong: {len(wrong)}.")
        for each in wrong:
            console.print(f"  {', '.join(each['kernels'])}: {each['wrong']}")
    for name, each in data["outputs"].items():
        verdict = "as ONNX Runtime's" if each["ok"] else f"WRONG ({each.get('reason', 'out of tolerance')})"
        console.print(f"Output {name}: {verdict}, error {each['max_rel_err']:.1e} of the largest element.")
