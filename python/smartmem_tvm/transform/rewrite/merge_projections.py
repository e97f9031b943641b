# SPDX-License-Identifier: Apache-2.0
"""MergeProjections: linear layers of one input become one linear layer."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax

from ...ir.block import as_constant
from ...ir.graph import append_log
from ...ir.pairs import INTEGER
from ...ir.rewrite_calls import is_static

MATMUL, ADD, CAST = ir.Op.get("relax.matmul"), ir.Op.get("relax.add"), ir.Op.get("relax.astype")
_STEPS = (ADD, CAST, ir.Op.get("relax.subtract"), ir.Op.get("relax.multiply"))


@tvm.transform.module_pass(opt_level=0, name="smartmem.MergeProjections")
class MergeProjections:
    """Compute the projections of one tensor (query, key and value, say) by one matmul with concatenated weights.

    Before::

        q = add(matmul(x, wq), bq)
        k = add(matmul(x, wk), bk)

    After::

        y = add(matmul(x, concat(wq, wk)), concat(bq, bk))     # concatenated at compile time
        q = strided_slice(y)                                   # views, eliminated later
        k = strided_slice(y)

    This is DNNFusion's graph rewriting (distributive law). Refused are matmuls whose weight is not a constant matrix,
    whose operand is constant or of unknown size (the slices would be kernels then), or whose dtypes differ. A constant
    bias is merged too if its addition is the only reader. So are the zero points and scales behind sums of integers, if
    all of the layers have them: what goes through memory are numbers, and no sums. The module records the merged
    operators.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        mod, log = mod.clone(), []
        for gvar, function in mod.functions.items():
            if isinstance(function, relax.Function):
                rewritten, decisions = _rewrite(function)
                log += decisions
                if decisions:
                    mod.update_func(gvar, rewritten)
        return append_log(relax.transform.Normalize()(mod), log)


def _rewrite(function: relax.Function) -> tuple[relax.Function, list[dict]]:
    """Return the function with its projections merged, and a decision for each merged operator."""
    blocks = function.body.blocks if isinstance(function.body, relax.SeqExpr) else []
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return function, []
    bindings = list(blocks[0].bindings)
    uses, binding_of = relax.analysis.udchain(blocks[0]), {each.var: each for each in bindings}
    groups: dict = {}
    for binding in bindings:
        if _is_projection(binding):
            operand, weight = binding.value.args
            key = (operand, *(str(each.ty.dtype.dtype) for each in (weight, binding.var)))
            chain = _scaled if _counts(binding) else _with_bias
            groups.setdefault(key, []).append(chain(binding, binding_of, uses))
    groups = {key: _alike(members) for key, members in groups.items() if len(members) > 1}
    if not groups:
        return function, []
    replaced: dict = {}  # variable of an old binding -> bindings that take its place
    log: list[dict] = []
    for (operand, *_), members in groups.items():
        merged, views = _merge(operand, members)
        log += _decisions(members, merged)
        replaced[members[0][0].var] = merged
        for member, view in zip(members, views, strict=True):
            for each in member:
                replaced.setdefault(each.var, [])
            replaced[member[-1].var] = [*replaced[member[-1].var], view]
    new = [b for old in bindings for b in replaced.get(old.var, [old])]
    body = relax.SeqExpr([relax.DataflowBlock(new)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs), log


def _decisions(members: list, merged: list) -> list[dict]:
    operators = dict.fromkeys(each.var.name for member in members for each in member)
    facts = {"action": "merged", "into": [each.var.name for each in merged]}
    reason = f"{len(members)} linear layers read one input: one product with all their weights reads it once"
    return [{"pass": "MergeProjections", "operator": name, **facts, "reason": reason} for name in operators]


def _is_projection(binding) -> bool:
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, ir.Call) or value.op != MATMUL:
        return False
    operand, weight = value.args
    constant = isinstance(weight, ir.Constant) and weight.ty.ndim == 2
    return constant and isinstance(operand, ir.Var) and is_static(operand.ty)


def _with_bias(matmul, binding_of: dict, uses) -> tuple:
    """Return the matmul's binding and the last of its chain: the addition of a constant bias, or the matmul's."""
    readers = list(uses.get(matmul.var, []))
    if len(readers) == 1 and isinstance(matmul.var, relax.DataflowVar):
        add = binding_of.get(readers[0])
        adds = add is not None and isinstance(add.value, ir.Call) and add.value.op == ADD
        if adds and _bias(add, matmul) is not None:
            return matmul, add
    return matmul, matmul


def _bias(add, matmul) -> np.ndarray | None:
    other = [a for a in add.value.args if not a.same_as(matmul.var)]
    columns = int(matmul.value.args[1].ty.shape[1])
    if len(other) == 1 and isinstance(other[0], ir.Constant) and other[0].value.numpy().shape == (columns,):
        return other[0].value.numpy()
    return None


def _counts(matmul) -> bool:
    return str(matmul.var.ty.dtype.dtype) == INTEGER


def _scaled(matmul, binding_of: dict, uses) -> tuple:
    """Return the bindings of a product of integers and of what a constant for each column, or a cast, makes of it."""
    chain = [matmul]
    while True:
        readers = list(uses.get(chain[-1].var, []))
        following = binding_of.get(readers[0]) if len(readers) == 1 else None
        inner = isinstance(chain[-1].var, relax.DataflowVar) and following is not None
        if not inner or not isinstance(following.value, ir.Call) or following.value.op not in _STEPS:
            return tuple(chain)
        if following.value.op != CAST and _operand(following, chain[-1], matmul) is None:
            return tuple(chain)
        chain.append(following)


def _operand(step, before, matmul) -> np.ndarray | None:
    """Return the constant of a step, one number for each column; None if it has none, or has it on the left."""
    left, right = step.value.args
    if not left.same_as(before.var) or not isinstance(right, ir.Constant):
        return None
    array, columns = right.value.numpy(), int(matmul.value.args[1].ty.shape[1])
    return np.broadcast_to(array.reshape(-1), (columns,)) if array.shape in ((), (1,), (columns,)) else None


def _alike(members: list) -> list:
    """Return products of integers with as many steps as all of them have; other members as they are."""
    if not _counts(members[0][0]):
        return members
    steps = zip(*([each.value.op for each in member] for member in members), strict=False)
    count = next((n for n, ops in enumerate(steps) if len(set(ops)) > 1), min(map(len, members)))
    return [member[:count] for member in members]


def _merge(operand, members: list) -> tuple[list, list]:
    """Return the bindings of the merged layer, and one view per member."""
    weights = [member[0].value.args[1].value.numpy() for member in members]
    ends = np.cumsum([w.shape[1] for w in weights])
    name = "_".join(member[-1].var.name for member in members)
    builder, bindings = relax.BlockBuilder(), []

    def emit(call, kind: str):
        value = builder.normalize(call)
        bindings.append(relax.VarBinding(relax.DataflowVar(f"{name}_{kind}", value.ty), value))
        return bindings[-1].var

    out_dtype = members[0][0].value.attrs.out_dtype
    merged = emit(relax.op.matmul(operand, as_constant(np.concatenate(weights, axis=1)), out_dtype), "matmul")
    if _counts(members[0][0]):
        for n, steps in enumerate(zip(*(member[1:] for member in members), strict=True)):
            value = steps[0].value
            if value.op == CAST:
                merged = emit(relax.op.astype(merged, value.attrs.dtype), f"cast{n}")
                continue
            known = [_operand(step, member[n], member[0]) for step, member in zip(steps, members, strict=True)]
            merged = emit(ir.Call(value.op, [merged, as_constant(np.concatenate(known))], value.attrs), f"step{n}")
    else:
        biases = [_bias(last, matmul) if last is not matmul else None for matmul, last in members]
        if any(bias is not None for bias in biases):
            pairs = zip(biases, weights, strict=True)
            dtype = str(merged.ty.dtype.dtype)
            bias = np.concatenate([np.zeros(w.shape[1], dtype) if b is None else b for b, w in pairs])
            merged = emit(relax.op.add(merged, as_constant(bias)), "add")
    axis = operand.ty.ndim - 1
    views = [
        relax.VarBinding(member[-1].var, relax.op.strided_slice(merged, [axis], [int(end - w.shape[1])], [int(end)]))
        for member, w, end in zip(members, weights, ends, strict=True)
    ]
    return bindings, views
