# SPDX-License-Identifier: Apache-2.0
"""A model at a capacity, with a number for the positions behind the length wherever an operator needs one.

    p = softmax(s)              s' = mask(s, -inf, length);  p = softmax(s')
    o = matmul(p, v)            p is zero behind the length, and v finite, as what it is computed from is masked
    g = mean(x)                 x' = mask(x, 0, length);  g' = mean(x');  g = g' * capacity / length

A mask of zeros moves to the first operand before linear operators, where the kernel before writes it: the norm before
the projections of queries, keys and values, say. All its readers then read the masked tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, relax

from ....analysis.items import Mixed, bindings_of, operator_of
from ....analysis.position_constants import is_number, is_one_number
from ....analysis.position_loops import Shares
from ....analysis.position_work import LengthWork, OperatorWork, operands
from ....ir.block import with_args
from ....ir.graph import CALL_TIR
from ....ir.kernel import substitute
from ....ir.mask_positions import (
    LENGTH,
    ZERO,
    Counted,
    Extent,
    counted,
    from_the_end,
    length_parameter,
    masked,
    scaled,
)
from ....ir.public_functions import MAIN, input_names

# Results are zero where the first operand is, and finite where it is finite.
_LINEAR = ("reshape", "permute_dims", "squeeze", "expand_dims", "strided_slice", "split")
_LINEAR += ("multiply", "divide", "matmul")
# Results are finite where the first operand is.
_FINITE = (*_LINEAR, "add", "subtract")


def with_masks(mod: tvm.IRModule, work: LengthWork, capacity: int, padded: bool = False) -> tvm.IRModule:
    """Return a model at a capacity that takes the length as its last input.

    Parameters
    ----------
    mod : tvm.IRModule
        The model before ``LegalizeOps`` at the capacity; its operators are those that `work` describes.
    padded : bool
        Whether callers write zeros behind the length of each input.
    """
    return _Masks(mod, work, capacity, padded).module()


def with_means(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a model whose variances are means, as numbers behind the length differ from the mean, too."""
    main = mod[MAIN]
    builder, bindings = relax.BlockBuilder(mod), []
    for binding in bindings_of(mod):
        value = binding.value
        if operator_of(value) == "variance":
            axes, data = value.attrs.axis, value.args[0]
            mean = _bound(builder, bindings, relax.op.mean(data, axes, keepdims=True))
            apart = _bound(builder, bindings, relax.op.subtract(data, mean))
            square = _bound(builder, bindings, relax.op.multiply(apart, apart))
            value = builder.normalize(relax.op.mean(square, axes, keepdims=bool(value.attrs.keepdims)))
        bindings.append(relax.VarBinding(binding.var, value))
    if len(bindings) == len(list(bindings_of(mod))):
        return mod
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    builder.update_func(
        mod.get_global_var(MAIN), relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    )
    return builder.get()


def _bound(builder: relax.BlockBuilder, bindings: list, value: relax.Expr) -> relax.Var:
    value = builder.normalize(value)
    var = relax.DataflowVar("part_of_variance", value.ty)
    bindings.append(relax.VarBinding(var, value))
    return var


@dataclass
class _Masks:
    mod: tvm.IRModule
    work: LengthWork
    capacity: int
    padded: bool = False
    builder: relax.BlockBuilder = field(init=False)

    def __post_init__(self):
        main = self.mod[MAIN]
        self.bindings = list(bindings_of(self.mod))
        self.made = {each.var: number for number, each in enumerate(self.bindings)}
        self.shares = dict(zip(main.params, self.work.inputs, strict=True))
        self.shares |= {each.var: found.shares for each, found in zip(self.bindings, self.work.operators, strict=True)}
        self.zeros: dict[ir.Var, dict[int, Extent]] = {}  # tensor whose readers read zeros -> its axes
        self.own: dict[tuple[int, int], dict[str, dict[int, Extent]]] = {}  # (binding, operand) -> fill -> axes
        self.builder = relax.BlockBuilder(self.mod)
        self.length = length_parameter()

    def module(self) -> tvm.IRModule:
        for number, (binding, found) in enumerate(zip(self.bindings, self.work.operators)):
            self._request(number, operands(binding.value), found)
        main, new, instead = self.mod[MAIN], [], {}
        for param in main.params:
            self._zeros(param, new, instead)
        for number, binding in enumerate(self.bindings):
            self._bind(number, binding, new, instead)
        # The results are not the masked tensors: what is behind the length is cut.
        body, blocks = main.body.body, [relax.DataflowBlock(new)]
        attrs = dict(main.attrs or {})
        attrs["input_names"] = [*input_names(main), LENGTH]
        if "num_input" in attrs:
            attrs["num_input"] = int(attrs["num_input"]) + 1
        result = relax.Function([*main.params, self.length], relax.SeqExpr(blocks, body), main.ret_ty)
        self.builder.update_func(self.mod.get_global_var(MAIN), result.with_attrs(attrs))
        return self.builder.get()

    def _request(self, number: int, read: list, found: OperatorWork) -> None:
        """Note where the masks go that an operator needs."""
        zero = {
            need.operand: True for need in found.needs if need.factor and self._is_zero(read[need.operand], need.axis)
        }
        for need in found.needs:
            value, extent = read[need.operand], _extent(found.reads[need.operand], need.axis)
            if need.fill == ZERO and self._is_zero(value, need.axis):
                continue
            finite = need.factor and bool(zero)
            if need.fill == ZERO and isinstance(value, ir.Var):
                at, axis = self._moved(value, need.axis, finite)
                self.zeros.setdefault(at, {})[axis] = _extent(self.shares[at], axis)
            else:
                self.own.setdefault((number, need.operand), {}).setdefault(need.fill, {})[need.axis] = extent

    def _is_zero(self, value, axis: int) -> bool:
        """Whether a tensor is zero behind the length along an axis."""
        if not isinstance(value, ir.Var):
            return False
        value, axis = self._moved(value, axis, finite=False)
        if axis in self.zeros.get(value, {}):
            return True
        number = self.made.get(value)
        return number is not None and axis in self.work.operators[number].zero

    def _moved(self, value: ir.Var, axis: int, finite: bool) -> tuple[ir.Var, int]:
        """Return the tensor to mask for zeros in `value`, or for finite numbers, and the axis."""
        number = self._maker(value)
        if number is None or axis in self.zeros.get(value, {}):
            return value, axis
        found, binding = self.work.operators[number], self.bindings[number]
        allowed = _FINITE if finite else _LINEAR
        if operator_of(binding.value) not in allowed or self._operand(binding.value) is None:
            return value, axis
        place, operand = self._operand(binding.value)
        before = next((key[1] for key, at in found.kept.items() if key[0] == place and at == axis), None)
        return (value, axis) if before is None else self._moved(operand, before, finite)

    def _maker(self, value: ir.Var) -> int | None:
        """Return the operator that computes a tensor: of a part of a tuple, the one that computes all parts."""
        number = self.made.get(value)
        part = None if number is None else self.bindings[number].value
        return self.made.get(part.tuple_value) if isinstance(part, ir.TupleGetItem) else number

    def _operand(self, value) -> tuple[int, ir.Var] | None:
        """Return the only operand of an operator that is no finite constant, and its place."""
        read = operands(value)
        data = [(place, each) for place, each in enumerate(read) if isinstance(each, ir.Var)]
        constants = [each.value.numpy() for each in read if not isinstance(each, ir.Var)]
        if len(data) != 1 or not all(each.dtype.kind in "iub" or np.isfinite(each).all() for each in constants):
            return None
        if operator_of(value) == "divide" and (data[0][0] or not all(each.all() for each in constants)):
            return None
        return data[0]

    def _bind(self, number: int, binding: relax.VarBinding, new: list, instead: dict) -> None:
        value = self._counted(number, binding.value, new)
        places = {place: fills for (at, place), fills in self.own.items() if at == number}
        if places:
            value = self._with_masked_operands(value, places, new, instead)
        value, found = _replaced(value, instead), self.work.operators[number]
        if found.last:
            new.append(relax.VarBinding(binding.var, self._last(value, binding.var, found)))
        elif not found.scaled:
            new.append(relax.VarBinding(binding.var, value))
        else:
            before = relax.DataflowVar(f"{binding.var.name}_of_capacity", binding.var.ty)
            new.append(relax.VarBinding(before, value))
            shape, dtype = _type(binding.var)
            kernel = scaled(shape, dtype, self.capacity, [each.extent for each in found.scaled])
            new.append(relax.VarBinding(binding.var, self._call(kernel, "mean_of_positions", before)))
        self._zeros(binding.var, new, instead)

    def _counted(self, number: int, value, new: list):
        """Return a value with constants that follow from the length computed from it."""
        read, chosen = operands(value), {}
        for place, counted_as in self.work.operators[number].counted.items():
            array = read[place].value.numpy()
            if not is_one_number(array, array) or not is_number(
                counted_as, self.capacity, float(array.reshape(-1)[0]), array.dtype
            ):
                raise Mixed(f"operator '{operator_of(value)}' reads a constant that follows no simple function of it")
            if array.shape == (1,) and str(array.dtype) == "int64" and counted_as == Counted(Extent()):
                chosen[place] = self.length
                continue
            var = relax.DataflowVar("number_of_positions", read[place].ty)
            kernel = self.builder.add_func(counted(array.shape, str(array.dtype), counted_as), "number_of_positions")
            new.append(relax.VarBinding(var, relax.call_tir(kernel, relax.Tuple([self.length]), var.ty)))
            chosen[place] = var
        return _with_operands(value, chosen) if chosen else value

    def _last(self, value, var, found: OperatorWork):
        """Return the call of a kernel that reads the last positions, in place of a slice."""
        (shape, dtype), (result, _) = _type(value.args[0]), _type(var)
        first: dict = dict(found.last)
        for axis, begin in zip(*(_integers(each) for each in value.args[1:3]), strict=True):
            first.setdefault(axis % len(shape), begin + shape[axis % len(shape)] if begin < 0 else begin)
        kernel = self.builder.add_func(from_the_end(shape, dtype, result, first), "last_positions")
        return relax.call_tir(kernel, relax.Tuple([value.args[0], self.length]), var.ty)

    def _with_masked_operands(self, value, places: dict, new: list, instead: dict):
        read, chosen = operands(value), {}
        for place, fills in places.items():
            operand = _replaced(read[place], instead)
            for fill, axes in fills.items():
                operand = self._masked(operand, axes, fill, new)
            chosen[place] = operand
        return _with_operands(value, chosen)

    def _zeros(self, var: ir.Var, new: list, instead: dict) -> None:
        if var in self.zeros:
            instead[var] = self._masked(var, self.zeros[var], ZERO, new)

    def _masked(self, operand, axes: dict[int, Extent], fill: str, new: list) -> relax.Var:
        if self.padded and fill == ZERO and any(operand.same_as(param) for param in self.mod[MAIN].params):
            return operand
        shape, dtype = _type(operand)
        var = relax.DataflowVar(f"{getattr(operand, 'name', 'constant')}_masked", operand.ty)
        kernel = masked(shape, dtype, dict(sorted(axes.items())), fill)
        new.append(relax.VarBinding(var, self._call(kernel, "mask_positions", operand)))
        return var

    def _call(self, kernel, name: str, operand):
        return relax.call_tir(self.builder.add_func(kernel, name), relax.Tuple([operand, self.length]), operand.ty)


def _integers(value) -> list[int]:
    return [int(each.value) for each in value.fields]


def _extent(shares: Shares, axis: int) -> Extent:
    return next(each.extent for each in shares if each.axis == axis)


def _type(value) -> tuple[tuple[int, ...], str]:
    return tuple(map(int, value.ty.shape)), str(value.ty.dtype)


def _replaced(value, instead: dict):
    if isinstance(value, ir.Var):
        return instead.get(value, value)
    return substitute(value, instead)


def _with_operands(value, chosen: dict):
    """Return a call with other operands at some places, counted as `operands` counts them."""
    count = iter(range(len(operands(value))))

    def rebuilt(part):
        if isinstance(part, ir.Tuple):
            return relax.Tuple([rebuilt(each) for each in part.fields])
        if isinstance(part, ir.Var) or (isinstance(part, ir.Constant) and hasattr(part.value, "numpy")):
            return chosen.get(next(count), part)
        return part

    args = list(value.args)
    if value.op == CALL_TIR:
        args[1] = rebuilt(args[1])
    else:
        args = [rebuilt(each) for each in args]
    return with_args(value, *args)
