# SPDX-License-Identifier: Apache-2.0
"""Small Relax modules for the tests of analyses and passes, and functions to inspect and run them."""

from collections import OrderedDict

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from smartmem_tvm.ir.graph import Graph, Node, graphs
from smartmem_tvm.ir.index_map import evaluate, grid
from smartmem_tvm.ir.kernel import shape_of
from smartmem_tvm.ir.movement import movement

op = relax.op
# For modules whose values are compared and whose machine code is not: LLVM optimizes nothing, in a fifth of the time.
UNOPTIMIZED = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def module(build, *shapes, dtype="float32") -> tvm.IRModule:
    """Return a module whose ``main`` is one dataflow block.

    `build` takes the variables ``x0``, ``x1`` ... of the given shapes (a shape may be a pair shape, dtype) and returns
    an expression, or a tuple of expressions for several results.
    """
    builder = relax.BlockBuilder()
    params = []
    for i, shape in enumerate(shapes):
        shape, kind = shape if len(shape) == 2 and isinstance(shape[1], str) else (shape, dtype)
        params.append(relax.Var(f"x{i}", relax.TensorType(shape, kind)))
    with builder.function("main", params):
        with builder.dataflow():
            result = build(*params)
            several = isinstance(result, tuple)
            outputs = [builder.emit_output(each) for each in (result if several else (result,))]
        builder.emit_func_output(tuple(outputs) if several else outputs[0])
    # An expression that `build` uses twice is one binding.
    passes = [relax.transform.EliminateCommonSubexpr(), relax.transform.CanonicalizeBindings()]
    return tvm.transform.Sequential(passes)(builder.get())


def legal(build, *shapes, dtype="float32") -> tvm.IRModule:
    """Return `module` with every operator a PrimFunc."""
    return legalize(module(build, *shapes, dtype=dtype))


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Make every operator a PrimFunc, fold constants, and drop dead code and copies of variables."""
    t = relax.transform
    passes = [t.LegalizeOps(), t.FoldConstant(), t.CanonicalizeBindings(), t.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(mod)


def graph(mod: tvm.IRModule) -> Graph:
    """Return the graph of ``main``."""
    return next(g for g in graphs(mod) if g.name == "main")


def nodes(mod: tvm.IRModule) -> list[Node]:
    """Return the nodes of ``main`` in order, without the tuple of its results; none if it returns an argument."""
    found = [g for g in graphs(mod) if g.name == "main"]
    return [node for g in found for node in g if not isinstance(node.value, relax.Tuple)]


def only_node(build, *shapes, dtype="float32") -> Node:
    """Return the node of a module that is one operator."""
    (node,) = nodes(legal(build, *shapes, dtype=dtype))
    return node


def bindings(mod: tvm.IRModule, name: str = "main") -> list:
    """Return all bindings of a function."""
    return [b for block in mod[name].body.blocks for b in block.bindings]


def operators(mod: tvm.IRModule) -> list[str]:
    """Return the names of the Relax operators of `main`, in order."""
    return [b.value.op.name.removeprefix("relax.") for b in bindings(mod) if isinstance(b.value, tvm.ir.Call)]


def calls(mod: tvm.IRModule) -> list[str]:
    """Return the names of the PrimFuncs that ``main`` calls, in order."""
    call_tir = tvm.ir.Op.get("relax.call_tir")
    values = [getattr(b, "value", None) for b in bindings(mod)]
    return [v.args[0].name_hint for v in values if isinstance(v, tvm.ir.Call) and v.op == call_tir]


def random(*shapes, dtype="float32", seed=0) -> list[np.ndarray]:
    """Return standard normal arrays."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]


def constant(*shape: int, seed: int = 7, dtype: str = "float32") -> tvm.ir.Constant:
    """Return a weight of standard normal numbers."""
    return relax.const(random(shape, seed=seed, dtype=dtype)[0], dtype)


_BUILT: OrderedDict[int, list] = OrderedDict()
_KEPT = 16  # modules; a test compares the same one with many others right after another


def built(mod: tvm.IRModule) -> relax.VirtualMachine:
    """Compile without TVM's fusion, schedules and LLVM's optimizations.

    A module with the same structure and constants is not built again.
    """
    key = tvm_ffi.structural_hash(mod)
    for known, machine in _BUILT.get(key, ()):
        if tvm_ffi.structural_equal(known, mod):
            _BUILT.move_to_end(key)
            return machine
    machine = relax.VirtualMachine(relax.build(mod, UNOPTIMIZED, relax_pipeline="default_build"), tvm.cpu())
    _BUILT.setdefault(key, []).append((mod, machine))
    if len(_BUILT) > _KEPT:
        _BUILT.popitem(last=False)
    return machine


def run(mod: tvm.IRModule, *arrays) -> list[np.ndarray]:
    """Compile without TVM's fusion and schedules, and run; return the results as a flat list."""
    result = built(mod)["main"](*map(tvm.runtime.tensor, arrays))
    return [each.numpy() for each in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def assert_same_results(before: tvm.IRModule, after: tvm.IRModule, *arrays, tolerance=1e-5) -> None:
    """Assert that both modules compute the same, and that the result depends on the first input."""
    expected, got = run(before, *arrays), run(after, *arrays)
    assert [g.shape for g in got] == [e.shape for e in expected]
    for mine, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=tolerance, atol=tolerance)


def move(node: Node, fill: float = 0, **inputs: np.ndarray) -> np.ndarray:
    """Carry out a data movement with numpy: evaluate its index map on the whole output grid.

    `inputs` are the function's parameters by name, `fill` is the constant of a padding. A point that no piece of the
    map covers stays NaN, and an index outside of its source fails.
    """
    what = movement(node.kernel)
    sources = dict(zip(node.kernel.inputs, (_array(arg, inputs) for arg in node.args), strict=True))
    space = grid(what.stage.spatial, what.stage.extents)
    shape = tuple(what.stage.extents[v] for v in what.stage.spatial)
    out = np.full(shape, np.nan)
    for piece in what.pieces:
        where = np.broadcast_to(True if piece.condition is None else evaluate(piece.condition, space), shape)
        if piece.source is None:
            out[where] = fill
            continue
        source = sources[piece.source]
        assert source.shape == shape_of(piece.source)
        index = [np.broadcast_to(_index(i, space, sources), shape)[where] for i in piece.indices]
        assert all((i >= 0).all() and (i < n).all() for i, n in zip(index, source.shape, strict=True))
        out[where] = source[tuple(index)]
    return out


def _array(arg, inputs: dict) -> np.ndarray:
    return inputs[arg.name] if isinstance(arg, tvm.ir.Var) else arg.value.numpy()


def _index(expr, space: dict, sources: dict) -> np.ndarray:
    """Return the value of an index, which may itself be read from an input (gather)."""
    loaded: dict = {}

    def as_variable(load):
        var = tvm.tirx.Var("loaded", load.ty)
        loaded[var] = sources[load.source][tuple(evaluate(i, space) for i in load.indices)]
        return var

    plain = tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, as_variable))
    return evaluate(plain, {**space, **loaded})


def count_up(*shape: int, start: int = 0) -> np.ndarray:
    """Return distinct integers, exact in float32, so that each moved element can be identified."""
    return start + np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
