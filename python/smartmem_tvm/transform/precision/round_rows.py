# SPDX-License-Identifier: Apache-2.0
"""RoundRows: rows that are multiplied by weights in codes become bytes with a scale for each group, where asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import ir, relax, te, tirx

from ...cpu_features import has_pairs, has_quads
from ...ir.block import Bindings, add_functions, edit_blocks, operator, shape_of
from ...ir.codes import ASKED, IN_WORD, NAME, ROWS
from ...ir.graph import CALL_TIR

_LARGEST = 127
"""The largest code of a row, by definition of ``accuracy_level`` 4 in ONNX Runtime; -128 is not used."""
_GROUPS = (64, 32)
"""Steps along the depth that share a scale where a weight has no groups of its own. Chosen: 32 is the usual block of
weights, and with 64 sums are scaled half as often."""


_FEW_ROWS, _RANGE = 3, 30
"""Rows up to which codes of eight bits are multiplied faster as integers without VNNI, and the largest difference of
two codes of four bits with zero points of their own, by definition. Measured for 768 x 2048 with code for AVX2: 0.6x of
the time with float rows for one row, 0.9x to 1.1x for 4 to 32 (an Intel Xeon, Sapphire Rapids, 2026-11-29)."""


@tvm.transform.module_pass(opt_level=0, name="smartmem.RoundRows")
class RoundRows:
    """Round the rows that a weight in codes is multiplied by to eight bits, with a scale for each group.

    Before, with ``w`` of codes in groups of 32 along the depth::

        y = matmul(x, w)

    After, with ``q`` of integers from -127 to 127::

        s = call_tir(scales_of_rows, x);             q = call_tir(codes_of_rows, (x, s))
        r = call_tir(dequantize_rows, (q, s));       y = matmul(r, w)

    A scale is the largest magnitude of its group over 127, as ONNX Runtime has it for ``accuracy_level`` 4.
    `ReadCodes` puts `dequantize_rows` into the products, whose sums then are of integers (`CodedProduct`). Rows are
    rounded once for all products that read them.

    Refuses (leaves in float32) rows whose length is no multiple of the group, more than three rows by codes of eight
    bits without VNNI, where integers are no faster, and all rows on targets without an instruction for products of
    bytes: CPUs without VNNI, AVX2 and AVX-512BW, and GPUs.

    Parameters
    ----------
    activations : str
        ``stored``: the rows of products for which the file asks for it; ``int8``: those of all products with a weight
        in codes; ``float``: none.
    """

    def __init__(self, activations: str = "stored"):
        self.activations = activations

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        builder, target = relax.BlockBuilder(mod), tvm.target.Target.current(allow_none=True)
        cpu = target is not None and target.kind.name == "llvm"
        able = {True: has_quads, False: has_pairs} if cpu else {}
        dots = next((each for each, has in able.items() if has(target)), None)
        changed = edit_blocks(mod, lambda block: self._round(block, builder, dots), leaves_unread=True)
        return add_functions(changed, builder)

    def _round(self, block: Bindings, builder: relax.BlockBuilder, dots: bool | None) -> list[dict]:
        decisions, done = [], {}
        for var in [*block.order]:
            call = block.values[var]
            if operator(call) != "matmul" or str(var.ty.dtype.dtype) != "float32":
                continue
            rows, weight = call.args
            asked, codes = _asked(block, rows), _codes_of(block, weight)
            if asked is None and (self.activations != "int8" or codes is None):
                continue
            rows, group = asked or (rows, _group(codes.group, shape_of(rows)[-1]))
            reason = self._objection(dots, codes, rows, group)
            if reason is None:
                if (rows, group) not in done:
                    done[rows, group] = _in_bytes(block, var, rows, group, builder)
                rows = done[rows, group]
            block.edit({var: relax.op.matmul(rows, weight)})
            action = {"action": "kept", "reason": reason} if reason else {"action": "rounded to 8 bits", "group": group}
            decisions.append({"pass": "RoundRows", "operator": var.name, **action})
        return decisions

    def _objection(self, dots: bool | None, codes: _Codes | None, rows, group: int) -> str | None:
        """Return why rows stay floats; None if they do not."""
        if self.activations == "float":
            return "activations stay float by request"
        if dots is None:
            return "the target multiplies no bytes"
        if codes is None:
            return "the weight is of floats"
        *lead, length = shape_of(rows)
        if group % IN_WORD or length % group:
            return f"{length} numbers are no groups of {group}, which share a scale, and those no eights"
        if not dots and codes.range > _RANGE and math.prod(lead) > _FEW_ROWS:
            return "without VNNI more than three rows by codes of eight bits are no faster in integers"
        return None


def _kernel(value) -> str:
    """Return the name of the kernel that a value calls; empty if it calls none."""
    return value.args[0].name_hint if isinstance(value, ir.Call) and value.op == CALL_TIR else ""


def _asked(block: Bindings, rows) -> tuple | None:
    """Return the rows, and the numbers of a group, behind the copy that asks for bytes; None if it is none."""
    value = block.values.get(rows) if isinstance(rows, ir.Var) else None
    name = _kernel(value)
    if not name.startswith(ASKED):
        return None
    return value.args[1].fields[0] if isinstance(value.args[1], relax.Tuple) else value.args[1], _number(name)


def _number(name: str) -> int:
    return int(name.removeprefix(ASKED).split("_")[1])


@dataclass(frozen=True)
class _Codes:
    """A weight in codes: the numbers along the depth that share a scale, and the largest difference of two codes."""

    group: int
    range: int


def _codes_of(block: Bindings, weight) -> _Codes | None:
    """Return what is known of a matrix in codes; None if it is no such matrix."""
    value = block.values.get(weight) if isinstance(weight, ir.Var) else None
    turned = operator(value) == "permute_dims"
    value = block.values.get(value.args[0]) if turned else value
    if not _kernel(value).startswith(NAME):
        return None
    codes, scales = value.args[1].fields
    depths = [shape_of(each)[int(turned)] for each in (codes, scales)]
    numbers = codes.value.numpy()
    return _Codes(-(-depths[0] // depths[1]), int(numbers.max()) - int(numbers.min()))


def _group(own: int, depth: int) -> int:
    """Return the numbers of a group of rows: those of the weight, or fewer where they are many."""
    if own <= max(_GROUPS):
        return own
    return next((each for each in _GROUPS if depth % each == 0), min(_GROUPS))


def _in_bytes(block: Bindings, before, rows, group: int, builder: relax.BlockBuilder) -> relax.Var:
    """Return the variable of rows that are computed from their codes, bound in front of another one."""
    lead, groups = shape_of(rows)[:-1], shape_of(rows)[-1] // group

    def scales(x: te.Tensor) -> te.Tensor:
        step = te.reduce_axis((0, group), "step")
        largest = te.compute(
            (*lead, groups),
            lambda *at: te.max(tirx.abs(x(*at[:-1], at[-1] * group + step)), axis=step),
            name="largest",
        )
        return te.compute((*lead, groups), lambda *at: largest(*at) / tirx.const(_LARGEST, "float32"), name="scales")

    def codes(x: te.Tensor, scale: te.Tensor) -> te.Tensor:
        zero, one = (tirx.const(each, "float32") for each in (0, 1))
        inverse = te.compute(
            (*lead, groups), lambda *at: tirx.Select(scale(*at) > zero, one / scale(*at), zero), name="inverse"
        )

        def at(*place):
            number = x(*place[:-2], place[-2] * group + place[-1]) * inverse(*place[:-1])
            return tirx.nearbyint(number).astype("int32").astype("int8")

        return te.compute((*lead, groups, group), at, name="codes")

    def dequantized(code: te.Tensor, scale: te.Tensor) -> te.Tensor:
        def at(*place):
            *outer, k = place
            return code(*outer, k // group, k % group).astype("float32") * scale(*outer, k // group)

        return te.compute(shape_of(rows), at, name="rows")

    scale = block.add(before, "scales", builder.call_te(scales, rows, primfunc_name_hint="scales_of_rows"))
    code = block.add(before, "codes", builder.call_te(codes, rows, scale, primfunc_name_hint="codes_of_rows"))
    return block.add(before, "rows", builder.call_te(dequantized, code, scale, primfunc_name_hint=ROWS))
