# SPDX-License-Identifier: Apache-2.0
"""Networks and launches on an OpenCL device: right, and how fast.

    python benchmarks/opencl.py                           five networks, TVM's default pipeline and ours, in turns
    python benchmarks/opencl.py --models swin_t --into benchmarks/opencl_pocl.json
    python benchmarks/opencl.py --overhead                an empty kernel: ours, through the Relax VM, and pyopencl's
    python benchmarks/opencl.py --per-kernel tvm          one inference of each model, kernel by kernel, as it goes

Each step runs in a process of its own and is given up after --timeout seconds: a kernel that never ends does not end
the others. The exit code is 1 if something failed or is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from opencl_results import record

from smartmem_tvm.bench.measure import Method, measure
from smartmem_tvm.bench.turns import Effort
from smartmem_tvm.cli.bench_systems import largest_error, prepare

ROOT = Path(__file__).parent.parent
MODELS = ("swin_t", "vit_b16", "convnext_t", "resnext50", "bert_base")
PIPELINES = ("smartmem", "tvm")
TOLERANCE = 1e-4
_CHAIN = 100  # kernels in one call of the virtual machine


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    args = _arguments()
    if args.child is not None:
        found = _overhead(args) if args.child == "overhead" else _per_kernel(args)
        args.answer.write_text(json.dumps(found), encoding="utf-8")
        return 0
    if args.overhead:
        results = [_in_child(args, "overhead")]
    elif args.per_kernel:
        results = [_in_child(args, "per-kernel", model) for model in args.models]
    else:
        results = [_network(args, model) for model in args.models]
    if args.into:
        section = "overhead" if args.overhead else "per_kernel" if args.per_kernel else "networks"
        record(args.into, section, results)
    return 0 if all(each["ok"] for each in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME", help="files in models/, without .onnx")
    parser.add_argument("--pipelines", nargs="+", default=PIPELINES, choices=PIPELINES)
    parser.add_argument("--target", default="opencl", help="a TVM target (default: opencl)")
    parser.add_argument("--overhead", action="store_true", help="measure launches of an empty kernel")
    parser.add_argument("--per-kernel", choices=PIPELINES, help="wait for each kernel of an inference and print it")
    parser.add_argument("--launches", type=int, default=1000, help="with --overhead: of one round (default: 1000)")
    parser.add_argument("--rounds", type=int, default=30, help="with --overhead (default: 30)")
    parser.add_argument("--budget", type=float, default=5.0, metavar="SECONDS", help="of timed runs for each pipeline")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for one step (default: 600)")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the results into this device's file")
    parser.add_argument("--child", choices=("overhead", "per-kernel"), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _network(args: argparse.Namespace, model: str) -> dict:
    """One model: our pipeline, TVM's and ONNX Runtime, each in a process, their runs in turns."""
    common = {"path": str(ROOT / "models" / f"{model}.onnx"), "shapes": {}, "threads": None, "seed": 0, "options": {}}
    systems = [*args.pipelines, "onnxruntime"]
    requests = [{"system": name, "count_only": False, "target": args.target, **common} for name in systems]
    effort = Effort(args.budget)
    found = measure(requests, Method(prepare, largest_error, "onnxruntime", effort, patience=args.timeout))
    result = {"model": model, "target": args.target, "systems": found, "ok": True}
    for name in args.pipelines:
        each = found.get(name, {"error": "not measured"})
        result["ok"] &= "error" not in each and each.get("relative_error", 1.0) <= TOLERANCE
        print(f"{model:12} {name:9} {_line(each)}", flush=True)
    return result


def _line(system: dict) -> str:
    if "error" in system:
        return f"FAILED: {system['error']}"
    seconds, latency = system["seconds"], system["latency_ms"]
    compiled = seconds["import"] + seconds["passes"] + seconds["codegen"]
    error = system.get("relative_error", float("nan"))
    return (
        f"{system['kernels']:4} kernels  compiled {compiled:5.1f} s  by the driver {seconds['driver']:5.1f} s  "
        f"first {system['first_seconds']:6.2f} s  then "
        f"{latency['median']:9.2f} ms ({latency['p10']:.2f} to {latency['p90']:.2f})  "
        f"error {error:.1e}{'' if error <= TOLERANCE else '  WRONG'}"
    )


def _in_child(args: argparse.Namespace, what: str, *models: str) -> dict:
    """Run this script again, for one step; what it prints passes through."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        # The last one counts where an option is given twice.
        command = [sys.executable, __file__, *sys.argv[1:], "--child", what, "--answer", str(answer)]
        process = subprocess.Popen([*command, "--models", *models] if models else command)
        try:
            code = process.wait(args.timeout)
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: a driver may keep it
            print(f"GIVEN UP after {args.timeout:g} s", flush=True)
            return {"step": what, "models": models, "ok": False, "error": f"gave up after {args.timeout:g} s"}
        if not answer.exists():
            return {"step": what, "models": models, "ok": False, "error": f"exit code {code}"}
        return json.loads(answer.read_text(encoding="utf-8"))


def _per_kernel(args: argparse.Namespace) -> dict:
    """Two inferences of one model; in the first one the driver compiles each kernel at its first launch."""
    from smartmem_tvm import compile, compile_baseline
    from smartmem_tvm.cli.inputs import id_limits, random_inputs
    from smartmem_tvm.deploy.target import parse_target
    from smartmem_tvm.frontend import check_inputs, from_onnx, from_onnx_as_tvm, read_model

    (name,) = args.models
    model = read_model(str(ROOT / "models" / f"{name}.onnx"), {})
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto)))
    theirs = args.per_kernel == "tvm"
    mod = (from_onnx_as_tvm if theirs else from_onnx)(model)
    print(f"{name}, pipeline {args.per_kernel}: compiling", flush=True)
    machine = (compile_baseline if theirs else compile)(mod, parse_target(args.target)).machine()
    rounds = []
    for number in (1, 2):
        print(f"inference {number}", flush=True)
        seconds = _watch(machine, arrays)
        rounds.append(seconds)
        slowest = sorted(seconds, key=seconds.get, reverse=True)[:8]
        print(f"  all kernels {sum(seconds.values()):.3f} s; slowest:")
        for each in slowest:
            print(f"    {seconds[each]:9.4f} s  {each}", flush=True)
    return {"step": "per-kernel", "model": name, "pipeline": args.per_kernel, "ok": True, "seconds": rounds}


def _watch(machine, arrays: list) -> dict[str, float]:
    """Seconds of each kernel, the device waited for after each; the name is printed before it starts."""
    seconds: dict[str, float] = defaultdict(float)
    start = 0.0

    def around(_func, name: str, before: bool, _result, *_arguments):
        nonlocal start
        if name.startswith("vm.builtin."):
            return 0
        if before:
            print(f"  {name}", end="", flush=True)
            start = time.perf_counter()
            return 0
        machine.device.sync()
        took = time.perf_counter() - start
        seconds[name] += took
        print(f"  {took:.4f} s", flush=True)
        return 0

    machine.set_instrument(around)
    machine["main"](*machine.tensors(arrays))
    machine.device.sync()
    return seconds


def _overhead(args: argparse.Namespace) -> dict:
    """Seconds per launch of the same kernel of one thread: N launches, then one wait, the ways in turns."""
    ways = _launchers(args)
    readings: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + args.rounds):
        for name, launch in ways.items():
            start = time.perf_counter()
            launches = launch()
            if number:  # the first round warms up
                readings[name].append((time.perf_counter() - start) / launches)
    seconds = {name: median(found) for name, found in readings.items()}
    print("an empty kernel of one thread and one buffer, microseconds per launch:")
    for name, each in seconds.items():
        theirs = min(value for other, value in seconds.items() if other.startswith("pyopencl"))
        print(f"  {each * 1e6:9.2f}  {each / theirs:5.2f}x of pyopencl's faster one  {name}")
    return {"step": "overhead", "ok": True, "launches": args.launches, "rounds": args.rounds, "seconds": seconds}


def _launchers(args: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Name -> a function that launches the kernel many times and waits; it returns how often."""
    import numpy as np
    import tvm

    from smartmem_tvm.deploy.target import device_of, parse_target

    target = parse_target(args.target)
    device = device_of(target)
    data = tvm.runtime.tensor(np.zeros(1, "float32"), device)
    module = tvm.compile(tvm.IRModule({"empty": _empty_function()}), target).mod
    empty, main = module["empty"], _empty_chain(target, device)

    def directly() -> int:
        for _ in range(args.launches):
            empty(data)
        device.sync()
        return args.launches

    def through_the_vm() -> int:
        for _ in range(args.launches // _CHAIN):
            main(data)
        device.sync()
        return args.launches // _CHAIN * _CHAIN

    ways = {"TVM's function from Python": directly, f"Relax VM, {_CHAIN} kernels per call": through_the_vm}
    return {**ways, **_pyopencl(_source(module), device.device_name, args.launches)}


def _empty_function():
    """A kernel with one argument that does next to nothing, on one thread."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def empty(a: T.Buffer((1,), "float32")):
        T.func_attr({"global_symbol": "empty", "tirx.noalias": True, "tirx.is_scheduled": True})
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for i in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("empty"):
                    v = T.axis.spatial(1, i)
                    a[v] = T.float32(0)

    return empty


def _empty_chain(target, device):
    """``main`` of a virtual machine that launches the kernel `_CHAIN` times."""
    from tvm import relax

    from smartmem_tvm.deploy.weights import Machine
    from smartmem_tvm.pipeline import Options, lower_phases, run_phases

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        kernel, value = builder.add_func(_empty_function(), "empty"), x
        with builder.dataflow():
            for _ in range(_CHAIN):
                call = relax.op.call_tir_inplace(kernel, [value], [0], [relax.TensorType((1,), "float32")])
                value = builder.emit(call)
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    with target:
        lowered = run_phases(builder.get(), lower_phases(target), Options())
    return Machine(relax.build(lowered, target, relax_pipeline=None), device=device)["main"]


def _pyopencl(source: str, device_name: str, launches: int) -> dict[str, Callable[[], int]]:
    """The same source, launched with pyopencl."""
    import pyopencl as cl

    (device, *_) = [d for p in cl.get_platforms() for d in p.get_devices() if d.name.strip() == device_name.strip()]
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    kernel = cl.Program(context, source).build().all_kernels()[0]
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
    kernel.set_args(buffer)

    def enqueue() -> int:
        for _ in range(launches):
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        queue.finish()
        return launches

    def call() -> int:
        for _ in range(launches):
            kernel(queue, (1,), (1,), buffer)
        queue.finish()
        return launches

    return {"pyopencl, arguments set once": enqueue, "pyopencl, arguments set each time": call}


def _source(module) -> str:
    """The OpenCL source in a module or its imports."""
    if module.kind == "opencl":
        return module.inspect_source()
    return "".join(_source(each) for each in module.imports)


if __name__ == "__main__":
    sys.exit(main())
