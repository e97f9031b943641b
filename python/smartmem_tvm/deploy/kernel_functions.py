# SPDX-License-Identifier: Apache-2.0
"""Export each kernel as a function of the virtual machine, so that TVM's clock on another machine can time it.

TVM's clock takes functions of the loaded module only, and kernels are in a module that it imports.
"""

from __future__ import annotations

import tvm
from tvm import ir, relax, tirx

from ..tune.parameters import has_fixed_shapes

PREFIX = "alone."


def with_kernel_functions(lowered: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a function ``alone.KERNEL`` for each kernel of fixed shapes, which calls the kernel.

    Parameters
    ----------
    lowered : tvm.IRModule
        Module after `deploy.build.lower`.
    """
    found = lowered.clone()
    for gvar, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc) and has_fixed_shapes(func):
            found[PREFIX + gvar.name_hint] = _passing_on(gvar, func)
    return found


def _passing_on(kernel: ir.GlobalVar, func: tirx.PrimFunc) -> relax.Function:
    params = [relax.Var(p.name, relax.TensorType([int(dim) for dim in p.shape], str(p.dtype))) for p in func.params]
    call = relax.Call(kernel, params, None, [relax.TupleType([])])
    done = relax.Var("done", relax.TupleType([]))
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(done, call)])], params[-1])
    return relax.Function(params, body, params[-1].ty).with_attr("global_symbol", PREFIX + kernel.name_hint)
