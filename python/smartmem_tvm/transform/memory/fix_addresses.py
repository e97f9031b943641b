# SPDX-License-Identifier: Apache-2.0
"""FixAddresses: a model with caches or an open length reads them at addresses that stay, for recorded kernels."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, te

from ...ir.cache_rows import FIXED_FROM, caches_of
from ...ir.public_functions import public_functions
from ...ir.several_sizes import takes_length


@tvm.transform.module_pass(opt_level=0, name="smartmem.FixAddresses")
class FixAddresses:
    """Copy the inputs of a function with caches or a length first, and make its caches the last of its parameters.

    Before::

        def main(ids, past, positions): ...             # past: a cache

    After::

        def main(ids, positions, past):
            ids_here = copy(ids); positions_here = copy(positions)
            ...                                          # of these, and past

    A recorded run holds the addresses of its tensors. The caller's inputs come anew for each call, so that kernels
    that read them cannot be recorded; copies lie in memory that is planned. Parameters from attribute ``num_input`` on,
    which `deploy.weights.lift_weights` sets, have one address in all calls, as weights have; caches are among them.
    `deploy.caches` passes them there on GPUs. The inputs of a model with an open length are copied, too: kernels all
    over the network read the length, and inputs are no longer than its capacity.
    Functions with neither stay as they are. Refused is nothing.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every public function of `mod` that has caches or takes a length."""
        names = [name for name in public_functions(mod) if caches_of(mod[name]) or takes_length(mod[name])]
        if not names:
            return mod
        builder = relax.BlockBuilder(mod)  # which adds equal kernels once
        for name in names:
            builder.update_func(mod.get_global_var(name), _fixed(mod[name], builder))
        return builder.get()


def _fixed(function: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    held = {cache.input for cache in caches_of(function)}
    given = [param for number, param in enumerate(function.params) if number not in held]
    caches = [param for number, param in enumerate(function.params) if number in held]
    places, copies = {}, []
    for param in given:
        if not isinstance(param.ty, relax.TensorType) or not isinstance(param.ty.shape, relax.ShapeExpr):
            continue
        kernel = _copy([int(dim) for dim in param.ty.shape], str(param.ty.dtype.dtype))
        gvar = builder.add_func(kernel, "take_input")
        call = builder.normalize(relax.call_tir(gvar, relax.Tuple([param]), param.ty))
        places[param] = relax.DataflowVar(f"{param.name}_here", param.ty)
        copies.append(relax.VarBinding(places[param], call))
    body = tvm_ffi.structural_map(function.body, (relax.Var, lambda var: places.get(var, var)))
    blocks = list(body.blocks)
    if copies and isinstance(blocks[0], relax.DataflowBlock):
        blocks[0] = relax.DataflowBlock([*copies, *blocks[0].bindings])
    elif copies:
        blocks.insert(0, relax.DataflowBlock(copies))
    body = relax.SeqExpr(blocks, body.body)
    new = relax.Function([*given, *caches], body, function.ret_ty, function.is_pure, function.attrs)
    return new.with_attr(FIXED_FROM, len(given))


def _copy(shape: list[int], dtype: str) -> tvm.tirx.PrimFunc:
    x = te.placeholder(shape, dtype, "given")
    kernel = te.create_prim_func([x, te.compute(shape, lambda *at: x(*at), "here")])
    return kernel.without_attr("global_symbol")
