#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long reading a network and its passes take for each node, for networks of 500 to 10,000 nodes.

python benchmarks/compile_nodes.py                # all, one after the other: five minutes on an idle machine
python benchmarks/compile_nodes.py --most 3000    # the smaller ones; what is in the file of the others stays
python benchmarks/render.py compile_time          # write the page
python benchmarks/compile_nodes.py --file model.onnx --shape x=16x21     # a file, whose sizes may be open: prints it

Two networks that are made here, as deep as one likes: layers of a transformer, and steps of a recurrence, written out.
Seconds are the processor's, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTO = HERE / "compile_nodes.json"
DEPTHS = {"layers": (10, 41, 204), "steps": (36, 143, 714)}
"""Network -> its depths, for about 500, 2,000 and 10,000 nodes."""
HIDDEN, HEADS, TOKENS = 32, 2, 8


class Network:
    """The nodes of a graph as they are added; random weights with a fixed seed."""

    def __init__(self):
        import numpy as np

        self.random, self.nodes, self.weights, self.numpy = np.random.RandomState(0), [], {}, np

    def add(self, operator: str, *reads: str, **attributes) -> str:
        """The result of an operator."""
        from onnx import helper

        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(reads), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Small random numbers."""
        return self.constant((self.random.randn(*shape) * 0.1).astype("float32"))

    def constant(self, array) -> str:
        """An initializer; a float becomes a scalar of float32, whole numbers int64."""
        array = self.numpy.asarray(array, "float32" if isinstance(array, float) else None)
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """A layer with a bias."""
        return self.add("Add", self.add("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def model(self, result: str, shape: tuple[int, ...]):
        """The whole, from ``x`` to ``y``, both of `shape`."""
        from onnx import TensorProto, helper, numpy_helper

        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
        stored = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "network", values[:1], values[1:], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def layers(depth: int):
    """A transformer, its norms and activations written out as old exporters do."""
    net = Network()

    def norm(x: str) -> str:
        centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
        variance = net.add("ReduceMean", net.add("Pow", centred, net.constant(2.0)), axes=[-1])
        scaled = net.add("Div", centred, net.add("Sqrt", net.add("Add", variance, net.constant(1e-5))))
        return net.add("Add", net.add("Mul", scaled, net.weight(HIDDEN)), net.weight(HIDDEN))

    def heads(x: str, order: list[int]) -> str:
        split = net.constant([1, TOKENS, HEADS, HIDDEN // HEADS])
        return net.add("Transpose", net.add("Reshape", net.linear(x, HIDDEN, HIDDEN), split), perm=order)

    at = "x"
    for _ in range(depth):
        x = norm(at)
        query, key, value = (heads(x, order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = net.add("Mul", net.add("MatMul", query, key), net.constant(0.25))
        mixed = net.add("Transpose", net.add("MatMul", net.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        joined = net.add("Reshape", mixed, net.constant([1, TOKENS, HIDDEN]))
        at = net.add("Add", at, net.linear(joined, HIDDEN, HIDDEN))
        x = net.linear(norm(at), HIDDEN, 2 * HIDDEN)
        erf = net.add("Erf", net.add("Div", x, net.constant(1.4142135)))
        gelu = net.add("Mul", net.add("Mul", x, net.add("Add", erf, net.constant(1.0))), net.constant(0.5))
        at = net.add("Add", at, net.linear(gelu, 2 * HIDDEN, HIDDEN))
    return net.model(at, (1, TOKENS, HIDDEN))


def steps(depth: int):
    """A recurrence, written out: each step reads its slice of the input and the state that the one before left."""
    net = Network()
    first, second, decay, axis = net.weight(HIDDEN, HIDDEN), net.weight(HIDDEN, HIDDEN), net.weight(HIDDEN), [1]
    axes, results, state = net.constant(axis), [], net.weight(1, HIDDEN)
    for step in range(depth):
        part = net.add("Slice", "x", net.constant([step]), net.constant([step + 1]), axes)
        x = net.add("Squeeze", part, axes)
        gate, key = net.add("Sigmoid", net.add("MatMul", x, first)), net.add("Exp", net.add("MatMul", x, second))
        above = net.add("Add", net.add("Mul", state, decay), net.add("Mul", key, x))
        state = net.add("Div", above, net.add("Add", net.add("Mul", gate, key), net.constant(1.0)))
        results.append(net.add("Unsqueeze", net.add("Mul", state, gate), axes))
    return net.model(net.add("Concat", *results, axis=1), (1, depth, HIDDEN))


def measure(kind: str, depth: int) -> dict:
    """Read one network and run all passes for this machine's CPU, in this process; see `measure_file`."""
    import tempfile

    import onnx

    model = {"layers": layers, "steps": steps}[kind](depth)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        return measure_file(file.name)


def measure_file(path: str, shapes: dict[str, tuple[int, ...]] | None = None) -> dict:
    """Read a file and run all passes for this machine's CPU, in this process.

    Returns
    -------
    dict
        ``nodes``, ``kernels`` of one inference, and ``seconds``, of each phase.
    """
    import onnx

    from smartmem_tvm import Options, from_onnx, graph_cost, optimize
    from smartmem_tvm.deploy.build import lower
    from smartmem_tvm.target import parse_target

    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    seconds, last = {}, time.process_time()

    def observe(phase: str, _mod) -> None:
        nonlocal last
        now = time.process_time()
        seconds[phase], last = round(seconds.get(phase, 0.0) + now - last, 3), now

    mod = from_onnx(path, shapes)
    observe("model read", mod)
    target = parse_target("cpu")
    with target:
        graph = optimize(mod, observe=observe)
        lower(graph, target, Options(), observe)
    return {"nodes": nodes, "kernels": graph_cost(graph).kernels, "seconds": seconds}


def print_file(path: str, shapes: list[str]) -> None:
    """Measure a file, with the sizes that ``--shape`` gives, and say what it takes."""
    given = (each.partition("=") for each in shapes)
    found = measure_file(path, {name: tuple(map(int, sizes.split("x"))) for name, _, sizes in given})
    total = sum(found["seconds"].values())
    print(f"{found['nodes']} nodes, {found['kernels']} kernels, {total:.1f} s, {1000 * total / found['nodes']:.1f} ms")
    print(", ".join(f"{phase} {seconds:.2f}" for phase, seconds in found["seconds"].items()))


def main() -> None:
    """Measure the networks that are asked for, each in a process of its own, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=20000, help="nodes of the largest network")
    parser.add_argument("--measure", nargs=2, metavar=("NETWORK", "DEPTH"), help="measure this one and print it")
    parser.add_argument("--file", help="an ONNX file: measure it, print what it takes and write nothing")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=AxB", help="sizes of an input of it")
    args = parser.parse_args()
    if args.file:
        print_file(args.file, args.shape)
        return
    if args.measure:
        print(json.dumps(measure(args.measure[0], int(args.measure[1]))))
        return
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tools.bench.results import write

    known = json.loads(INTO.read_text())["networks"] if INTO.is_file() else {}
    for number in range(3):
        for kind, depths in DEPTHS.items():
            name = f"{kind} {depths[number]}"
            if (500, 2000, 10000)[number] > args.most:
                continue
            command = [sys.executable, __file__, "--measure", kind, str(depths[number])]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ))
            known[name] = {**json.loads(child.stdout.splitlines()[-1]), "date": date.today().isoformat()}
            print(f"{name}: {known[name]['nodes']} nodes, {sum(known[name]['seconds'].values()):.1f} s", flush=True)
            write(INTO, json.dumps({"machine": machine(1), "networks": known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
