# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: runs of kernels that are recorded once and launched as a whole from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tvm
from tvm import IRModule, ir, relax, s_tir, tirx
from tvm.ir.transform import PassContext, module_pass

from ..ir.allocations import is_launch
from ..ir.functions import public_functions
from ..ir.walk import collect

RECORD = "vm.builtin.cuda_graph.run_or_capture"


@module_pass(opt_level=0, name="CaptureGraphs")
class CaptureGraphs:
    """Move runs of kernels whose tensors stay where they are into functions that the device launches as one graph.

    Before (``x`` comes from the caller, ``w`` is a weight, ``a``, ``b`` are in memory planned by TVM)::

        first(x, a); second(a, w, b); third(b, w, a); last(a, y)

    After::

        first(x, a); run_or_capture(main_cuda_graph_capture, (a, w, b)); last(a, y)

    The memory that a graph works in is allocated with its first run and kept: its kernels have the addresses in them.

    Refuses (leaves the module as it is) if a kernel still allocates device memory of its own (see `LiftWorkspaces`):
    TVM takes that from a pool whose pages may move, and the graph would go on using the old one. The same goes for what
    functions of a library do.

    Notes
    -----
    To be run after ``StaticPlanBlockMemory`` and before memory is lowered any further. Parameters of a function beyond
    its attribute ``num_input`` are taken for weights, of which every call passes the same.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass, which is one of TVM's and asks for a permission of its own."""
        functions = mod.functions.values()
        if any(_allocates(func) if isinstance(func, tirx.PrimFunc) else _calls_library(func) for func in functions):
            return mod
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
            return relax.transform.RewriteCUDAGraph()(mod)


def _allocates(func: tirx.PrimFunc) -> bool:
    """Whether a kernel allocates global memory, at its root or anywhere in code that no rule has scheduled."""
    alone = [allocation.buffer for allocation in collect(func.body, tirx.AllocBuffer)]
    in_blocks = [buffer for block in collect(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]
    return any(buffer.scope() == "global" for buffer in (*alone, *in_blocks))


def _calls_library(func: relax.Function) -> bool:
    called = [call.op.global_symbol for call in _calls(func) if isinstance(call.op, relax.ExternFunc)]
    return not all(name.startswith("vm.builtin.") for name in called)


def kernels_per_graph(mod: IRModule) -> list[int]:
    """The number of kernels in each CUDA graph, function by function, in the order of their launches.

    Parameters
    ----------
    mod : tvm.IRModule
        After `CaptureGraphs`, memory not lowered any further.
    """
    launches = filter(None, (launch_of(call) for name in public_functions(mod) for call in _calls(mod[name])))
    return [sum(is_launch(mod, call) for call in _calls(mod[each.graph])) for each in launches]


def _calls(func: relax.Function) -> list[ir.Call]:
    values = [getattr(binding, "value", None) for block in func.body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, ir.Call)]


class Launch(NamedTuple):
    """A call that launches a CUDA graph: the function that was recorded, and what it is given."""

    graph: ir.GlobalVar
    tensors: Sequence[ir.Expr]


def launch_of(value: ir.Expr) -> Launch | None:
    """The launch of a graph that a value is, None if it is something else."""
    if not isinstance(value, ir.Call) or not value.args or getattr(value.args[0], "global_symbol", None) != RECORD:
        return None
    graph, tensors = value.args[1].fields[:2]
    return Launch(graph, tensors.fields)
