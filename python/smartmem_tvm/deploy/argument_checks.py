# SPDX-License-Identifier: Apache-2.0
"""Remove the argument checks of kernels whose arguments the virtual machine itself has made, in the right shapes.

TVM begins each kernel with a check of every argument: kind, rank, type, shape, strides, alignment and device, each with
a message. LLVM takes longer for the checks than for the loops: in a kernel of 29 tensors they are six sevenths of the
code.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax, tirx

from ..ir.walk import collect
from ..transform.memory.capture_graphs import RECORDERS, launch_of
from ..tune.parameters import has_fixed_shapes

UNCHECKED = "smartmem.unchecked_arguments"
_ALLOCATES = "relax.vm.alloc_tensor"
# The same tensor at another address (see `PlanMemory`).
_MOVES = ("vm.builtin.ensure_zero_offset", "vm.builtin.smartmem_part")


def trust_own_tensors(lowered: IRModule) -> IRModule:
    """Mark the kernels of fixed shapes whose arguments are all tensors of the virtual machine.

    These are the tensors that it allocates, constants, and the model's weights. Any other tensor is checked by the
    kernels that read it, also the caller's, of which the machine checks only the shape and the type.

    Parameters
    ----------
    lowered : tvm.IRModule
        Code of the virtual machine.

    Returns
    -------
    tvm.IRModule
        A copy of `lowered` with the marks.
    """
    kernels = {g: f for g, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc) and has_fixed_shapes(f)}
    called, mentioned = dict.fromkeys(kernels, 0), dict.fromkeys(kernels, 0)
    for func, own in _own_tensors(lowered).items():
        for call in collect(func, ir.Call):
            if call.op in called and all(isinstance(arg, ir.Constant) or arg in own for arg in call.args):
                called[call.op] += 1
        for gvar in collect(func, ir.GlobalVar):
            if gvar in mentioned:
                mentioned[gvar] += 1
    marked = lowered.clone()
    for gvar, func in kernels.items():
        if 0 < called[gvar] == mentioned[gvar]:
            marked[gvar] = func.with_attr(UNCHECKED, True)
    return marked


def _own_tensors(lowered: IRModule) -> dict[relax.Function, set]:
    """Return, for each function, the variables of tensors that the machine has made, and of weights.

    The tensors that the function of a CUDA graph takes belong to its one caller; the function makes its results.
    """
    own, handed = {}, {}
    functions = [(gvar, func) for gvar, func in lowered.functions_items() if isinstance(func, relax.Function)]
    for gvar, func in sorted(functions, key=lambda item: "num_input" not in (item[1].attrs or {})):  # callers first
        attrs = func.attrs or {}
        weights = func.params[int(attrs["num_input"]) :] if "num_input" in attrs else handed.get(gvar, ())
        held = own[func] = set(weights)
        for binding in collect(func, relax.VarBinding):
            value = binding.value
            if _is_own(value, held):
                held.add(binding.var)
            elif (launch := launch_of(value, RECORDERS)) is not None:
                pairs = zip(lowered[launch.graph].params, launch.tensors, strict=True)
                held.add(binding.var)
                handed[launch.graph] = [param for param, arg in pairs if isinstance(arg, ir.Constant) or arg in held]
    return own


def _is_own(value: ir.Expr, held: set) -> bool:
    """Whether a value is a tensor that the machine makes here, or one of `held`."""
    if not isinstance(value, ir.Call):
        return (value.tuple_value if isinstance(value, relax.TupleGetItem) else value) in held
    name = getattr(value.op, "name", None) or getattr(value.op, "global_symbol", None)
    return name == _ALLOCATES or (name in _MOVES and value.args[0] in held)


def without_checks(host: IRModule) -> IRModule:
    """Return functions for the host, the marked ones without checks of their arguments."""
    marked = {gvar: func for gvar, func in host.functions_items() if UNCHECKED in (func.attrs or {})}
    bare = host.clone()
    for gvar, func in tirx.transform.SkipAssert()(IRModule(marked)).functions_items() if marked else ():
        bare[gvar] = func
    return bare
