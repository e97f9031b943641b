# SPDX-License-Identifier: Apache-2.0
"""What a launch costs on an OpenCL device: an empty kernel, ours, through the Relax VM, and pyopencl's.

python benchmarks/opencl_launches.py --into benchmarks/opencl_pocl.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from opencl_results import record

_CHAIN = 100  # kernels in one call of the virtual machine


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="opencl", help="a TVM target (default: opencl)")
    parser.add_argument("--launches", type=int, default=1000, help="of one round (default: 1000)")
    parser.add_argument("--rounds", type=int, default=30, help="(default: 30)")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the results into this device's file")
    args = parser.parse_args()
    result = _overhead(args)
    if args.into:
        record(args.into, "overhead", [result])


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

    from smartmem_tvm.target import device_of, parse_target

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
    main()
