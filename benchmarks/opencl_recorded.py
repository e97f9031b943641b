# SPDX-License-Identifier: Apache-2.0
"""What a recorded launch costs the host, by how it is made again and by how many tensors its kernel has.

    python benchmarks/opencl_recorded.py      # benchmarks/opencl_recorded.json

A hundred launches of a kernel of 64 numbers, in an arena, are one inference; the ways take turns. "host" is when the
call returns, "in all" when the device is done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from opencl_results import record

LAUNCHES, SIZE = 100, 64
TENSORS = (2, 4, 8)
# Name -> how launches are made again, and whether tensors of one buffer are one argument.
WAYS = {
    "by the virtual machine": ("", ""),
    "each by itself, an argument for each tensor": ("launches", "0"),
    "each by itself": ("launches", "1"),
    "command buffer, an argument for each tensor": ("command-buffer", "0"),
    "command buffer": ("command-buffer", "1"),
}
_KERNEL = """
@T.prim_func(s_tir=True)
def summed({parameters}, out: T.Buffer(({size},), "float32")):
    T.func_attr({{"global_symbol": "summed", "tirx.noalias": True, "tirx.is_scheduled": True}})
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for i in T.thread_binding({size}, thread="threadIdx.x"):
            with T.sblock("summed"):
                v = T.axis.spatial({size}, i)
                out[v] = {value}
"""


def main() -> None:
    """Measure, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".json"), metavar="FILE")
    args = parser.parse_args()
    runs = {(tensors, way): inference(tensors, way) for tensors in TENSORS for way in WAYS}
    results = []
    for (tensors, way), (host, in_all) in in_turns(runs, args).items():
        results.append({"tensors": tensors, "way": way, "host_us": host, "in_all_us": in_all})
        print(results[-1], flush=True)
    record(args.output, "recorded", results)


def in_turns(runs: dict[tuple, Callable], args: argparse.Namespace) -> dict[tuple, list[float]]:
    """Medians for a launch in microseconds, of the host and in all."""
    times: dict[tuple, list] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            times[name].append(run())
    return {name: [median(each) * 1e6 / LAUNCHES for each in zip(*found, strict=True)] for name, found in times.items()}


def inference(tensors: int, way: str) -> Callable[[], tuple[float, float]]:
    """Launches, recorded in a way and once made again; a call returns the seconds of the host and in all."""
    import numpy as np
    import tvm

    from smartmem_tvm.runtime.opencl import every_launch

    machine, (replay, shared) = chain(tensors - 1), WAYS[way]
    given, main = machine.tensor(np.full(SIZE, 2.0**-100, "float32")), machine["main"]
    os.environ.update(SMARTMEM_OPENCL_REPLAY=replay, SMARTMEM_OPENCL_SHARED_ARGUMENTS=shared)
    first, *others = [main(given).numpy() for _ in range(4)]
    assert first.any() and all((each == first).all() for each in others)

    def run() -> tuple[float, float]:
        with contextlib.nullcontext() if replay else every_launch():
            start = time.perf_counter()
            main(given)
            host = time.perf_counter()
            tvm.opencl(0).sync()
            return host - start, time.perf_counter() - start

    return run


def chain(read: int):
    """A virtual machine each kernel of which adds up the last results of the others."""
    import tvm
    from tvm import relax
    from tvm.script import from_source, tirx

    from smartmem_tvm.deploy.weights import Machine
    from smartmem_tvm.pipeline import Options, lower_phases, run_phases
    from smartmem_tvm.target import parse_target

    parameters = ", ".join(f'a{number}: T.Buffer(({SIZE},), "float32")' for number in range(read))
    value = " + ".join(f"a{number}[v]" for number in range(read))
    kernel = from_source(_KERNEL.format(parameters=parameters, value=value, size=SIZE), {"T": tirx})
    target, kind = parse_target("opencl"), relax.TensorType((SIZE,), "float32")
    builder, x = relax.BlockBuilder(), relax.Var("x", kind)
    with builder.function("main", [x]):
        summed, last = builder.add_func(kernel, "summed"), [x] * read
        with builder.dataflow():
            for _ in range(LAUNCHES):
                last = [*last[1:], builder.emit(relax.op.call_tir(summed, last, kind))]
            result = builder.emit_output(last[-1])
        builder.emit_func_output(result)
    with target:
        lowered = run_phases(builder.get(), lower_phases(target), Options())
    return Machine(relax.build(lowered, target, relax_pipeline=None), device=tvm.opencl(0))


if __name__ == "__main__":
    main()
