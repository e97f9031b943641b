# SPDX-License-Identifier: Apache-2.0
"""Code generation with faults of every kind, each with one candidate of a layer norm; workers import it."""

import ctypes
import time

import tvm
from tvm import tirx
from tvm.target import Target

from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.tune.build_candidates import plain_code

# Decisions (vectors, tasks) -> the fault, in code generation or at run time.
MAKING = {(1, 1): "crashes", (1, 3): "hangs", (1, 6): "takes all memory", (1, 12): "finds the disk full"}
RUNNING = {(2, 1): "crashes", (2, 3): "hangs", (2, 6): "takes all memory"}
ROOM = 3 * 10**9  # bytes that a worker may have


def faulty_code(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Return code of a kernel, or of a faulty one in its place."""
    func = mod["main"]
    decided = func.attrs[DECISIONS]
    key = int(decided["rows.vectors"]), int(decided["rows.tasks"])
    if key in MAKING:
        _fail(MAKING[key])
    if key in RUNNING:
        body = _BODIES[RUNNING[key]](*func.params)
        other = tirx.PrimFunc(func.params, body, func.ret_type).with_attrs(dict(func.attrs))
        mod = tvm.IRModule({**dict(mod.functions), mod.get_global_var("main"): other})
    return plain_code(mod, target)


def _fail(how: str) -> None:
    if how == "crashes":
        ctypes.string_at(0)
    elif how == "hangs":
        time.sleep(10**6)
    elif how == "takes all memory":
        bytearray(2 * ROOM)
    else:
        raise OSError(28, "No space left on device")


def _far_store(x: tirx.Buffer, y: tirx.Buffer) -> tirx.Stmt:
    """Return a store beyond all memory of the process."""
    return tirx.BufferStore(y, tirx.const(1.0, "float32"), [tirx.const(2**42, "int64"), 0])


def _endless(x: tirx.Buffer, y: tirx.Buffer) -> tirx.Stmt:
    """Return a loop that ends only if an argument, which is positive, is not."""
    return tirx.While(x[0, 0] > 0, tirx.BufferStore(y, y[0, 0] + x[0, 0], [0, 0]))


def _greedy(x: tirx.Buffer, y: tirx.Buffer) -> tirx.Stmt:
    """Return an allocation that is larger than the worker's memory."""
    many = tirx.decl_buffer((2 * ROOM // 4,), "float32", "many")
    n = tirx.Var("n", "int64")
    fill = tirx.For(n, 0, tirx.const(2 * ROOM // 4, "int64"), tirx.ForKind.SERIAL, tirx.BufferStore(many, x[0, 0], [n]))
    use = tirx.BufferStore(y, many[tirx.Cast("int64", x[0, 1])], [0, 0])
    return tirx.SeqStmt([tirx.AllocBuffer(many), fill, use])


_BODIES = {"crashes": _far_store, "hangs": _endless, "takes all memory": _greedy}
