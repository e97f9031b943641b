# SPDX-License-Identifier: Apache-2.0
"""StreamWeights: weights and tensors between kernels lie in an arena that a plan fills while kernels run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tvm
from tvm import ir, relax, s_tir, tirx

from ...ir.allocations import Allocation, allocations, is_launch, is_packed
from ...ir.equal_tensors import first_of_equals
from ...ir.public_functions import MAIN, public_functions
from ...ir.several_sizes import size_functions
from ...ir.sizes import ROWS, STORABLE, STREAM, STREAMED, STREAMED_FROM, WEIGHT_ALIGNMENT, data_bytes
from ...ir.walk import collect
from ...planner.arena import aligned


@tvm.transform.module_pass(opt_level=0, name="smartmem.StreamWeights")
class StreamWeights:
    """Let ``main``, or the function of each size, ask a stream for its tensors and its weights (FlexNN, 3.4).

    Before::

        a = R.builtin.alloc_tensor((100,), "float32"); first(x, w, a)

    After, with one more parameter, a ``WeightStream`` of ``native/stream``::

        smartmem.stream.begin(stream)
        a = smartmem.stream.tensor(stream, 0, (100,), "float32")
        w = smartmem.stream.weight(stream, 0, (50, 100), "float32");   first(x, w, a)
        smartmem.stream.done(stream, 0)
        smartmem.stream.end(stream)

    The code does not depend on where tensors lie or when weights are read: the stream's plan decides that, and it may
    change between inferences. ``weight`` waits until the weight is read. The attribute `STREAM` of a function lists the
    lifetimes of its tensors, and `STREAMED` of the module the weights of all functions, in the order of their numbers.

    Run the pass after ``CallTIRRewrite`` and `JoinSlices`. Left alone: results, which the caller keeps, tensors of
    unknown shape, constants of at most `STREAMED_FROM` bytes, and constants of a type that numpy lacks.

    Parameters
    ----------
    budget : int
        Bytes that the model is compiled for; the pass only records them.
    """

    def __init__(self, budget: int = 0):
        self.budget = budget

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to ``main``, or to the functions of the sizes."""
        names = size_functions(mod) or [name for name in public_functions(mod) if name == MAIN]
        weights = _Weights(mod, names)
        rewriters = {name: _Rewriter(mod, self.budget, weights) for name in names}
        functions = {name: rewriter.function(mod[name]) for name, rewriter in rewriters.items()}
        if not any(rewriter.steps for rewriter in rewriters.values()):
            return mod  # not lowered yet, or nothing to stream
        new = mod.clone()
        for name, function in functions.items():
            new.update_func(new.get_global_var(name), function)
        return new.with_attr(STREAMED, list(weights.numbers))


class _Weights:
    """The weights that are streamed, equal ones once, and where `deploy.weights.write_weights` puts them."""

    def __init__(self, mod: tvm.IRModule, names: Sequence[str]):
        constants = [each.value for name in names for each in collect(mod[name].body, ir.Constant)]
        self._same = first_of_equals(each for each in constants if isinstance(each, tvm.runtime.Tensor))
        self.numbers: dict[tvm.runtime.Tensor, int] = {}
        self.offsets: list[int] = []  # in the file
        self._end = 0

    def number(self, tensor: tvm.runtime.Tensor) -> int:
        """Return the number of a weight, counted in the order of first use."""
        tensor = self._same.get(tensor, tensor)
        if tensor not in self.numbers:
            self.numbers[tensor] = len(self.numbers)
            self.offsets.append(aligned(self._end, WEIGHT_ALIGNMENT))
            self._end = self.offsets[-1] + data_bytes(tensor)
        return self.numbers[tensor]


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, mod: tvm.IRModule, budget: int, weights: _Weights):
        self.mod, self.budget, self.weights = mod, budget, weights
        self.stream = relax.Var("stream", relax.AnyType())
        self.steps: list[dict] = []
        self.uses: list[dict] = []
        self.tensors: list[dict] = []

    def function(self, func: relax.Function) -> relax.Function:
        """Return the function with a stream as its last parameter."""
        found = {var: each for var, each in allocations(self.mod, func, packed=(ROWS,)).items() if each.fits}
        blocks = []
        for block in func.body.blocks:
            made: list[relax.Binding] = [] if blocks else [self._packed("begin")]
            for binding in block.bindings:
                made += self._binding(binding, found)
            blocks.append(relax.BindingBlock(made))
        blocks.append(relax.BindingBlock([self._packed("end")] if blocks else []))
        body = relax.SeqExpr(blocks, func.body.body)
        plan = {"budget": self.budget, "steps": self.steps, "tensors": self.tensors, "uses": self.uses}
        new = relax.Function([*func.params, self.stream], body, func.ret_ty, func.is_pure, func.attrs)
        return new.with_attr({"num_input": len(func.params), STREAM: json.dumps(plan)})

    def _binding(self, binding: relax.Binding, found: dict[relax.Var, Allocation]) -> list[relax.Binding]:
        value = getattr(binding, "value", None)
        if binding.var in found:
            tensor = found[binding.var]
            self.tensors.append({"bytes": tensor.bytes, "first": min(tensor.steps), "last": max(tensor.steps)})
            return [self._tensor("tensor", len(self.tensors) - 1, binding.var)]
        if is_packed(value, ROWS):
            return self._rows(value)
        if not is_launch(self.mod, value):
            return [binding]
        made, args, step = [], list(value.args), len(self.steps)
        here: dict[int, relax.Var] = {}  # weights of this step: one that it reads twice is read once
        for number, arg in enumerate(args):
            if not (isinstance(arg, ir.Constant) and self._is_large(arg)):
                continue
            weight = self.weights.number(arg.value)
            if weight not in here:
                here[weight] = relax.Var(f"weight_{len(self.uses)}", arg.ty)
                made.append(self._tensor("weight", len(self.uses), here[weight]))
                self.uses.append({"weight": weight, "bytes": data_bytes(arg.value), "step": step})
            args[number] = here[weight]
        self.steps.append({"kernel": value.op.name_hint, "flops": self._flops(value.op)})
        call = relax.Call(value.op, args, value.attrs, value.ty_args)
        return [*made, relax.VarBinding(binding.var, call), self._packed("done", step)]

    def _rows(self, call: ir.Call) -> list[relax.Binding]:
        """Return the bindings that read rows of a table from the file."""
        table, numbers, rows = call.args
        offset = self.weights.offsets[self.weights.number(table.value)]
        step = len(self.steps)
        self.steps.append({"kernel": ROWS, "flops": 0.0})
        return [self._packed("rows", offset, int(table.value.shape[0]), numbers, rows), self._packed("done", step)]

    def _is_large(self, constant: ir.Constant) -> bool:
        tensor = constant.value
        known = isinstance(tensor, tvm.runtime.Tensor) and str(tensor.dtype) in STORABLE
        return known and data_bytes(tensor) > STREAMED_FROM

    def _flops(self, gvar: ir.GlobalVar) -> float:
        try:
            return float(s_tir.analysis.estimate_tir_flops(self.mod[gvar]))
        except Exception:  # TVM raises it for loops of unknown extents; the number is an estimate only
            return 0.0

    def _tensor(self, name: str, number: int, var: relax.Var) -> relax.VarBinding:
        """Return the binding of a variable to the stream's tensor of a number."""
        return self._packed(name, number, relax.ShapeExpr(list(var.ty.shape)), ir.StringImm(str(var.ty.dtype)), var=var)

    def _packed(self, name: str, *args: int | relax.Expr, var: relax.Var | None = None) -> relax.VarBinding:
        """Return a binding of a call of the stream; without `var`, the call returns no value."""
        var = relax.Var("_", relax.TupleType([])) if var is None else var
        given = [tirx.IntImm("int64", arg) if isinstance(arg, int) else arg for arg in args]
        call = relax.Call(relax.ExternFunc(f"smartmem.stream.{name}"), [self.stream, *given], ty_args=[var.ty])
        return relax.VarBinding(var, relax.BlockBuilder().normalize(call))
