# SPDX-License-Identifier: Apache-2.0
"""Legalize operators without TVM's warning for each kernel; in effect once TVM is imported through `_tvm`."""

from __future__ import annotations

from tvm import ir, relax, te
from tvm.script.ir_builder import tirx as ir_builder
from tvm.script.parser import tirx as parsed_tirx
from tvm.tirx.script import builder as script_builder
from tvm.tirx.script import parser as script_parser
from tvm.tirx.script.builder import utils as builder_utils


def _seq_scope() -> ir_builder.frame.AttrFrame:
    """Return the frame that groups several statements in kernels of TVM's operators, such as scatters.

    Work-around: TVM's frame is an attribute named like a pragma, and its code generator for CPUs warns of each pragma
    that it does not recognise. No pass sees the kernels that fold constants, so the frame itself is replaced.
    """
    return ir_builder.attr(0, "smartmem_scope", builder_utils.StringImm("seq"))


for _module in (builder_utils, script_builder, script_parser, parsed_tirx):  # the modules that hold the name
    _module.seq_scope = _seq_scope


_legalize_take = ir.Op.get("relax.take").get_attr("FLegalize")


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the kernel of a ``take`` without a check of its indices.

    Work-around: TVM makes the same kernel, and warns each time, also where all indices are known and within bounds.
    """
    data, indices = call.args
    if call.attrs.mode != "fast" or call.attrs.axis is None or not isinstance(indices.ty, relax.TensorType):
        return _legalize_take(builder, call)
    return builder.call_te(_taken, data, indices, int(call.attrs.axis), primfunc_name_hint="take")


def _taken(data: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """Return elements of an axis, whose place is taken by indices of any rank."""
    axis, last = axis % data.ndim, axis % data.ndim + indices.ndim
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    return te.compute(
        shape, lambda *at: data(*at[:axis], indices(*at[axis:last]), *at[last:]), name="T_take", tag="injective"
    )


ir.register_op_attr("relax.take", "FLegalize", _take, level=11)  # TVM's own is of level 10
