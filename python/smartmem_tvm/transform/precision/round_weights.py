# SPDX-License-Identifier: Apache-2.0
"""RoundWeights: weights of products in float32 become integers with a scale for each group, on request."""

from __future__ import annotations

import math
from collections.abc import Collection
from fnmatch import fnmatchcase

import numpy as np
import tvm
from tvm import ir, relax

from ...errors import UserError
from ...ir.block import Bindings, add_functions, as_constant, edit_blocks, operator, shape_of, weight
from ...ir.codes import LEAST, NAME, Rounding, dequantized

_LARGEST = {4: 7, 8: 127}
"""Bits -> the largest code."""


@tvm.transform.module_pass(opt_level=0, name="smartmem.RoundWeights")
class RoundWeights:
    """Round the weight of a matmul to integers of four or eight bits, with a scale for each group along the depth.

    Before::

        y = matmul(x, constant)                                        # constant: 768 x 3072 in float32

    After, with ``q`` of integers from -8 to 7, and ``s`` of 24 x 3072::

        w = call_tir(dequantize_weight, (q, s));   y = matmul(x, w)

    A scale is what rounds the numbers of its group with the smaller sum of squared errors: the largest magnitude
    over 7, or the number of largest magnitude over -8 (for eight bits: over 127, or -128). Each decision has the error:
    the norm of the difference over the norm of the weight.

    Refuses (leaves as they are) weights of less than 4096 numbers or of other types than float32, those that are no
    matrices, and products that are named.

    Parameters
    ----------
    rounding : Rounding
        Bits and groups.
    kept : collection of str
        Names of products whose weights stay floats, perhaps with ``*``.
    as_floats : bool
        Write each rounded weight as a constant of floats, for comparisons.
    """

    def __init__(self, rounding: Rounding, kept: Collection[str] = (), as_floats: bool = False):
        self.rounding, self.kept, self.as_floats = rounding, tuple(kept), as_floats

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        builder, found = relax.BlockBuilder(mod), set()
        changed = edit_blocks(mod, lambda block: self._round(block, builder, found))
        missing = [each for each in self.kept if each not in found]
        if missing:
            raise UserError(
                f"No product is called '{missing[0]}', whose weights were to stay floats: `smartmem explain --all "
                f"--weights int8` names them all."
            )
        return add_functions(changed, builder)

    def _round(self, block: Bindings, builder: relax.BlockBuilder, found: set) -> list[dict]:
        decisions, done = [], {}
        for var in block.order:
            call = block.values[var]
            if operator(call) != "matmul" or str(var.ty.dtype.dtype) != "float32":
                continue
            for n, arg in enumerate(call.args):
                if not _is_weight(arg):
                    continue
                decision = {"pass": "RoundWeights", "operator": var.name}
                names = [each for each in self.kept if fnmatchcase(var.name, each)]
                found.update(names)
                if names:
                    decisions.append({**decision, "action": "kept", "reason": f"'{names[0]}' stays in float"})
                    continue
                if (arg, n) not in done:
                    done[arg, n] = self._call(arg, 1 - n, builder)
                value, error = done[arg, n]
                args = [value if at == n else each for at, each in enumerate(call.args)]
                block.edit({var: relax.op.matmul(*args)})
                call = block.values[var]
                decisions.append({**decision, "action": f"rounded to {self.rounding.bits} bits", "error": error})
        return decisions

    def _call(self, arg: ir.Constant, axis: int, builder: relax.BlockBuilder) -> tuple[relax.Expr, float]:
        """Return the call that computes a rounded weight, or its floats, and its error; groups lie along `axis`."""
        values = weight(arg)
        group = min(self.rounding.group or values.shape[axis], values.shape[axis])
        codes, scales = rounded(values if axis == 0 else values.T, self.rounding.bits, group)
        whole = np.repeat(scales, group, 0)[: len(codes)] * codes
        error = float(np.linalg.norm(whole - (values if axis == 0 else values.T)) / (np.linalg.norm(values) or 1.0))
        if self.as_floats:
            return as_constant(np.ascontiguousarray(whole if axis == 0 else whole.T, "float32")), error
        codes, scales = (each if axis == 0 else np.ascontiguousarray(each.T) for each in (codes, scales))
        operands = as_constant(codes), as_constant(scales)
        return builder.call_te(dequantized(axis, group), *operands, primfunc_name_hint=NAME), error


def _is_weight(arg) -> bool:
    values = weight(arg)
    known = values is not None and values.ndim == 2 and values.dtype == np.float32 and math.prod(shape_of(arg)) >= LEAST
    return known and bool(np.all(np.isfinite(values)))


def rounded(values: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes and scales of a matrix, in groups of numbers along its first dimension.

    Returns
    -------
    codes : array of int8
        Of the shape of `values`.
    scales : array of float32
        Of (groups, columns).
    """
    depth, columns = values.shape
    groups, most = -(-depth // group), _LARGEST[bits]
    padded = np.zeros((groups * group, columns), "float32")
    padded[:depth] = values
    parts = padded.reshape(groups, group, columns)
    place = np.abs(parts).argmax(1)[:, None]
    largest = np.take_along_axis(parts, place, 1)
    best = None
    for scale in (np.abs(largest) / most, largest / -(most + 1)):
        scale = np.where(np.abs(scale) < np.finfo("float32").tiny, np.float32(1), scale)
        codes = np.clip(np.rint(parts / scale), -most - 1, most)
        error = np.square(codes * scale - parts).sum(1, keepdims=True)
        if best is None:
            best = codes, scale, error
        else:
            better = error < best[2]
            best = np.where(better, codes, best[0]), np.where(better, scale, best[1]), error
    codes = best[0].reshape(-1, columns)[:depth].astype("int8")
    return codes, np.ascontiguousarray(best[1][:, 0].astype("float32"))
