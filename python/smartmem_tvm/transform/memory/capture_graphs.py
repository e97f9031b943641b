# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs, and their counterpart on OpenCL: runs of kernels that are recorded once and launched as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.allocations import PART, is_launch, part
from ...ir.public_functions import public_functions
from ...ir.walk import collect
from ...target import is_opencl

RECORD = "vm.builtin.cuda_graph.run_or_capture"
_MOVES = ir.Op.get("relax.memory.ensure_zero_offset")
_STORAGE = ir.Op.get("relax.memory.alloc_storage")
_REPLAYED = {
    RECORD: "vm.builtin.smartmem_replay.run",
    "vm.builtin.cuda_graph.get_cached_alloc": "vm.builtin.smartmem_replay.allocate",
}
"""TVM's functions -> those of this package's runtime for OpenCL."""
RECORDERS = (RECORD, _REPLAYED[RECORD])
"""The functions that run a recorded run of kernels, on any target."""


@module_pass(opt_level=0, name="CaptureGraphs")
class CaptureGraphs:
    """Move runs of kernels whose tensors stay where they are into functions that the device launches as one graph.

    Before (``x`` comes from the caller, ``w`` is a weight, ``a``, ``b`` are in memory planned by TVM)::

        first(x, a); second(a, w, b); third(b, w, a); last(a, y)

    After::

        first(x, a); run_or_capture(main_cuda_graph_capture, (a, w, b)); last(a, y)

    The memory of a graph is allocated with its first run and kept, because the recorded kernels hold its addresses.

    Refuses (leaves the module as it is) if a kernel still allocates device memory of its own (see `LiftWorkspaces`):
    TVM takes that from a pool whose pages may move, and the graph would go on using the old address. The same is true
    of memory that library functions allocate.

    Notes
    -----
    Run the pass after ``StaticPlanBlockMemory`` and before memory is lowered any further. Parameters of a function
    beyond its attribute ``num_input`` are taken for weights, and every call has to pass the same ones.

    For OpenCL on this machine the runtime of this package has the same functions (``native/replay.cc``): the virtual
    machine runs the kernels twice, and from then on they are launched without it.

    Parameters
    ----------
    target : tvm.target.Target, optional
        The target, CUDA by default.
    """

    def __init__(self, target: tvm.target.Target | None = None):
        self.replayed = target is not None and is_opencl(target)

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run TVM's pass, which has to be enabled in the pass context."""
        functions = mod.functions.values()
        if any(_allocates(func) if isinstance(func, tirx.PrimFunc) else _calls_library(func) for func in functions):
            return mod
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
            if not self.replayed:
                return relax.transform.RewriteCUDAGraph()(mod)
            # TVM's pass recognises its own operator alone as a view of a tensor that stays, and a single device.
            numbers = _numbers_of_scopes(mod)
            plain = _mapped(_mapped(mod, ir.Call, _as_operator), ir.Call, _on_device(dict.fromkeys(numbers, 0)))
            captured = _mapped(relax.transform.RewriteCUDAGraph()(plain), ir.Call, _on_device(numbers))
        return _mapped(_mapped(captured, ir.Call, _as_part), relax.ExternFunc, _replayed)


def _mapped(mod: IRModule, kind: type, change: Callable) -> IRModule:
    """Replace each node of `kind` by its `change`, in the Relax functions of a module."""
    new = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            new.update_func(gvar, tvm_ffi.structural_map(func, (kind, change)))
    return new


def _replayed(extern: relax.ExternFunc) -> relax.ExternFunc:
    name = str(extern.global_symbol)
    return relax.ExternFunc(_REPLAYED[name], extern.ty) if name in _REPLAYED else extern


def _as_operator(call: ir.Call) -> ir.Call:
    is_part = isinstance(call.op, relax.ExternFunc) and call.op.global_symbol == PART
    return relax.BlockBuilder().normalize(relax.op.memory.ensure_zero_offset(call.args[0])) if is_part else call


def _is_storage(call: ir.Call) -> bool:
    return call.op == _STORAGE


def _numbers_of_scopes(mod: IRModule) -> dict[str, int]:
    """Return, for each memory scope of storages, a device number for TVM's virtual machine; 0 means buffers."""
    functions = [func.body for func in mod.functions.values() if isinstance(func, relax.Function)]
    storages = [call for body in functions for call in collect(body, ir.Call) if _is_storage(call)]
    return {call.args[2].value: int(call.args[1]) for call in storages}


def _on_device(numbers: dict[str, int]) -> Callable[[ir.Call], ir.Call]:
    """Return a function that gives storages the number of their scope."""

    def numbered(call: ir.Call) -> ir.Call:
        if not _is_storage(call) or numbers[call.args[2].value] == int(call.args[1]):
            return call
        shape, _, scope, dtype = call.args
        return relax.BlockBuilder().normalize(
            relax.op.memory.alloc_storage(shape, numbers[scope.value], scope, dtype.value)
        )

    return numbered


def _as_part(call: ir.Call) -> ir.Call:
    return part(call.args[0]) if call.op == _MOVES else call


def _allocates(func: tirx.PrimFunc) -> bool:
    """Whether a kernel allocates global memory, at its root or anywhere in unscheduled code."""
    alone = [allocation.buffer for allocation in collect(func.body, tirx.AllocBuffer)]
    in_blocks = [buffer for block in collect(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    return any(buffer.scope() == "global" for buffer in (*alone, *in_blocks))


def _calls_library(func: relax.Function) -> bool:
    called = [call.op.global_symbol for call in _calls(func) if isinstance(call.op, relax.ExternFunc)]
    return not all(name.startswith("vm.builtin.") for name in called)


def kernels_per_graph(mod: IRModule) -> list[int]:
    """Return the number of kernels in each CUDA graph, function by function, in the order of their launches.

    Parameters
    ----------
    mod : tvm.IRModule
        The module after `CaptureGraphs`, memory not lowered any further.
    """
    launches = filter(None, (launch_of(call) for name in public_functions(mod) for call in _calls(mod[name])))
    return [sum(is_launch(mod, call) for call in _calls(mod[each.graph])) for each in launches]


def _calls(func: relax.Function) -> list[ir.Call]:
    values = [getattr(binding, "value", None) for block in func.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, ir.Call)]


class Launch(NamedTuple):
    """A call that launches a CUDA graph: the recorded function and its arguments."""

    graph: ir.GlobalVar
    tensors: Sequence[ir.Expr]


def launch_of(value: ir.Expr, names: Collection[str] = (RECORD,)) -> Launch | None:
    """Return the graph launch that a value is; None for any other value."""
    if not isinstance(value, ir.Call) or not value.args or getattr(value.args[0], "global_symbol", None) not in names:
        return None
    graph, tensors = value.args[1].fields[:2]
    return Launch(graph, tensors.fields)
